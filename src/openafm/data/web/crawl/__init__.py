"""The crawler: which pages, in which order, fetched how."""
