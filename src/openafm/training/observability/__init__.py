"""Metrics, goodput, curves and the live view of a run."""
