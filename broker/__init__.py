"""An AMQP 0-9-1 broker as a deterministic replicated machine."""
