"""Sample project: a shop and its orders."""
