"""Environments of tool-use annotation: project folders, state with snapshots, tools in worker processes, samples."""
