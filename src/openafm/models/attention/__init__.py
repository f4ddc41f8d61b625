"""Attention: configs, modules, position embeddings, masks, and the contexts that store keys and values (report 2.1)."""
