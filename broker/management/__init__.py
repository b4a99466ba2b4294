"""The management API over HTTP: RabbitMQ's paths and JSON, over the replicated state."""
