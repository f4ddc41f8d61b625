"""The data of runs: built-in corpora, mixtures, the user's data."""
