"""Run Apple's Python SDK on openafm: a replacement for its private binding, and an installer."""
