"""An MCP server (Model Context Protocol) in front of an everlong server. Needs the extra `everlong-client[mcp]`."""
