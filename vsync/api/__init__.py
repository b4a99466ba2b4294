"""Library API: `Cluster` and `Group` for asyncio programs."""
