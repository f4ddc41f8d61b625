"""Commands that serve a model and measure it."""
