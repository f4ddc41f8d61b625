"""Data (report section 3): documents, token shards, mixtures and the loader; synthetic conversations in `synthetic/`."""
