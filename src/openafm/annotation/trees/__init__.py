"""Annotated trajectories: trees as append-only logs, their storage, edits and exports."""
