"""Byte-level BPE, chat templates and schema text (report 4.1)."""
