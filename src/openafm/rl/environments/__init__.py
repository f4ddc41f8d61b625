"""Prompts whose rewards are exact and that small policies learn in minutes: extraction, tools, copying, formats."""
