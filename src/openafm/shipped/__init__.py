"""Models that come with the package: `nano/` is a bundle, which answers until another is chosen. Made by recipes/ship.py."""
