"""Training objectives: next token, distillation online and from cached logits, router losses."""
