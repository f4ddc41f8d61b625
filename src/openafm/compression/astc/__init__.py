"""ASTC 6x6 for weight matrices: 128 bits for 36 weights, in the blocks that graphics hardware decodes (report section 6)."""
