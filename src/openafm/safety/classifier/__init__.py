"""Guardrail models: a multi-label head on the hidden states of any bundle, with thresholds by locale (report 9)."""
