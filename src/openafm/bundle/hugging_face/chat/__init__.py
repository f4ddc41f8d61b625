"""Chat templates of checkpoints: from Jinja to layouts that are data, and back for exports."""
