"""Apple's Python SDK above openafm: a binding in place of its private one, and a way to install the two together."""
