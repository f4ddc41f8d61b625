"""Sample project: device settings."""
