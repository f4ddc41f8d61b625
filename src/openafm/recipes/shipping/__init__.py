"""Training, scoring and packaging of the model that comes with openafm."""
