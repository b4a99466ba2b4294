"""A thin AMQP and management client."""
