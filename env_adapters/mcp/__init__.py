"""Environment whose tools are those of MCP servers."""
