"""Decoding: prefill, sampling, grammars and speculative decoding."""
