"""Commands that train, plan and reproduce."""
