"""Token shards: a folder of memory-mapped arrays with a manifest."""
