"""Our brokers beside RabbitMQ's, and beside those of another commit, in turns."""
