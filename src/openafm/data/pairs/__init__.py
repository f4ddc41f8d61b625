"""Image-text pairs and interleaved documents from crawled pages (report 3.2.1)."""
