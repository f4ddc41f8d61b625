"""Compress models: 2-bit QAT, ASTC, 4-bit embeddings, 8-bit keys and values (report section 6)."""
