"""Decoders as data: configs free of torch, and the modules they build (report 2)."""
