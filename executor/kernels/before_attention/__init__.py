"""What happens to queries and keys before attention: norms of heads, and how fast pairs turn."""
