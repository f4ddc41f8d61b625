"""Feed-forward layers: gated, and mixtures of experts (report 2.1, 2.2)."""
