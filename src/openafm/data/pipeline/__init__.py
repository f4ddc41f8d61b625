"""The web pipeline: stages over shards, from WARC files to a corpus in Parquet (report section 3.1)."""
