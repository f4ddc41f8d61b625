"""Rewards: configs that build functions from samples to scores."""
