"""Value types, by kind: plain values, numbers, formatted strings, composites."""
