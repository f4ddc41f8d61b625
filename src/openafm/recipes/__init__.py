"""Every run of the report as a function that returns one typed config, and the one function that carries a run out."""
