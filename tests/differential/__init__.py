"""The same random client programs at our broker and at a RabbitMQ, answer by answer."""
