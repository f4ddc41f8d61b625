"""Training objectives and what they need: teachers, cached logits, router losses."""
