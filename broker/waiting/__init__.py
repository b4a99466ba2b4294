"""Messages that wait in queues: their order, and where they are."""
