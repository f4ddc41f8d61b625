"""The HTTP server: OpenAI, Ollama and Anthropic APIs over local bundles, access control, metrics."""
