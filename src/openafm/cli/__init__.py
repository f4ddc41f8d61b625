"""The `openafm` command. Verbs import heavy modules inside their functions."""
