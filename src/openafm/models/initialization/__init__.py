"""Initial weights: random, with induction heads, from a dense model, with a larger vocabulary (report 4.1, 4.3)."""
