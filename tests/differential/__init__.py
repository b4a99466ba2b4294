"""The same random client programs at our broker and at a RabbitMQ, reply by reply."""
