"""From token shards to batches: rows of packed documents, drawn by arithmetic."""
