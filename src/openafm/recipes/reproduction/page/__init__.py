"""The page of a reproduction, with drawings and samples."""
