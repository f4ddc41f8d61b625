"""Guardrails on prompts and responses (report 9)."""
