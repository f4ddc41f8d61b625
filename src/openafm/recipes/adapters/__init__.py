"""Training and export of adapters (report 6, 7)."""
