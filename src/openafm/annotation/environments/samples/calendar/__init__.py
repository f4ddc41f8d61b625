"""Sample project: calendar and contacts."""
