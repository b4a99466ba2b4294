"""Unit tests of `amqp`."""
