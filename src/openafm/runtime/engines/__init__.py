"""Engines: the interface, the torch implementation, KV caches and snapshots."""
