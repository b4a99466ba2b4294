"""Client connections: sockets, channels, AMQP methods in, replies and deliveries out."""
