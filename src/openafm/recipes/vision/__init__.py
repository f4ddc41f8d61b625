"""Recipes of the vision encoder (report 4.2)."""
