"""Post-training compression of a bundle and the comparison of bundles (report 6)."""
