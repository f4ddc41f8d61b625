"""Value types: one annotation as JSON Schema, as JSON and as a Python value."""
