"""Compression without training: rounding in groups, and GPTQ with calibration data."""
