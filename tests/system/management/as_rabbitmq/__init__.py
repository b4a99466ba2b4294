"""RabbitMQ tools' requests of its management API, sent to ours."""
