"""Fixtures of the runtime's tests."""
