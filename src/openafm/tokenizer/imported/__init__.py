"""Tokenizers and chat templates of open-weight models."""
