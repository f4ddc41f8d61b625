"""Byte-level BPE, the chat template and the schema text: how text becomes tokens (report 4.1)."""
