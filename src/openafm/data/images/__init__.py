"""Images for training: documents of text and images, image shards, near-duplicates, resolution modes (report 3.2, 5.1)."""
