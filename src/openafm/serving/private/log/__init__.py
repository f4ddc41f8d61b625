"""The log of releases: signed checkpoints, Merkle trees, witnesses, its server."""
