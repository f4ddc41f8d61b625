"""The stages of a reproduction, by section of the report; `catalog.py` lists all."""
