"""AMQP 0-9-1 on the wire: codec and connection state, without sockets."""
