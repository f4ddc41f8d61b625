"""Pages of the web: crawling, opt-outs, WARC files."""
