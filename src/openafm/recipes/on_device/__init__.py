"""Recipes of the on-device model (report 4.3, 5.1, 6), one file per stage."""
