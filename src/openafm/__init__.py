"""openafm: an open implementation of Apple Intelligence Foundation Language Models: Tech Report 2025."""
