"""Language models behind a session: local bundles and OpenAI-compatible endpoints."""
