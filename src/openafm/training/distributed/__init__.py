"""Processes, meshes and sharding."""
