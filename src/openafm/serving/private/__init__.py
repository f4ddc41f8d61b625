"""Private compute: encrypted requests to stateless nodes whose releases are signed and logged."""
