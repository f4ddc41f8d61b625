"""Low-rank adapters: modules, parameter counts, and the folder they travel in (report sections 6 and 7)."""
