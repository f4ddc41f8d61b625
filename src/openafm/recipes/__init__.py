"""Complete runs as typed configs, and the code that carries them out."""
