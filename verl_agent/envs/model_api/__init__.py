"""Models behind an API: servers that speak the protocol of OpenAI or of Anthropic."""
