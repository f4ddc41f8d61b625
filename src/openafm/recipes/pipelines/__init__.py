"""Pipelines over pages and images, and the models that take part in them (report 3, 5.1)."""
