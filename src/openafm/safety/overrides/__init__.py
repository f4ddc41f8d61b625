"""Override lists: terms that an app blocks, warns about or handles in its own way (report 9)."""
