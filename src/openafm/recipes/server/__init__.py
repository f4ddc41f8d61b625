"""Recipes of the server model (report 2.2, 4.3, 5.1), one file per stage."""
