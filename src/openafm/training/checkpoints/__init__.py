"""Checkpoints: write, index, verify and read."""
