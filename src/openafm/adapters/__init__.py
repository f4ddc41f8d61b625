"""Low-rank adapters: modules, parameter counts, file format, installation and delivery (report sections 6 and 7)."""
