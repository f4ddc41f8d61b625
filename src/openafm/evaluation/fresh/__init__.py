"""Held-out sets whose authors did not see the training frames (report 8)."""
