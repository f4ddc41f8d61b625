"""Scores on held-out data, beside baselines (report 8)."""
