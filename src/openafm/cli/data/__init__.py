"""Commands below `openafm data`."""
