"""Messages waiting in queues: their order, and their place in memory or on disk."""
