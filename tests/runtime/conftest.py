"""The tests of this room and of those below it find its tiny engines and bundles."""
