"""The tasks of the built-in corpus: one module each."""
