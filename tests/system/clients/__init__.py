"""Third-party AMQP clients against a real cluster."""
