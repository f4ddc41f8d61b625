"""Prompts, transcripts and feedback."""
