"""Memory, communication and time of a run, computed from its config."""
