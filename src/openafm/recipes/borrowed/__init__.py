"""Training on a machine that is lent for some minutes, and from which only a few small files come back."""
