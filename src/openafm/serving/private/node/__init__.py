"""A private node: its server, folder, keys and signed statements."""
