"""The HTTP interfaces: routes, and the JSON that clients of OpenAI, Anthropic and Ollama send and expect."""
