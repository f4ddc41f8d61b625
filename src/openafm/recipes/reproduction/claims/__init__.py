"""The report's claims, by section; `catalog.py` lists all."""
