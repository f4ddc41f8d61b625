"""Signed delivery of adapters over HTTP: keys, manifest, server and client."""
