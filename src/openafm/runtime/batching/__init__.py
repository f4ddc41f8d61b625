"""Continuous batching: admission, pending steps and the scheduler."""
