"""The library API: `Cluster` and `Group`, for asyncio programs."""
