"""Sample project: travel booking."""
