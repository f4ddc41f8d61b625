"""Models divided among processes: tracks, experts, positions of rows (report 2.2)."""
