"""Commands that evaluate, annotate and check models."""
