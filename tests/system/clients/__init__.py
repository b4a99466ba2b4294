"""Other people's AMQP clients against a real cluster."""
