"""Synthesis of fine-tuning data with verification (report 5.1): prompts in, verified conversations and counted drops out."""
