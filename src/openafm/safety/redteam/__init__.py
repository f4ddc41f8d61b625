"""Red teaming: attacks on a model, their outcomes by category and locale, and a queue for people (report 9)."""
