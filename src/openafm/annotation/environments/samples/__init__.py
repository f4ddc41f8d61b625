"""Sample projects; `openafm annotate init` copies them."""
