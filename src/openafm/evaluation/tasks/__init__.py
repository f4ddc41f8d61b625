"""Public evaluation sets as tasks. Their data are read from the user's folder; none come with the package."""
