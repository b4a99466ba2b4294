"""What tools made for RabbitMQ ask of its management API, asked of ours."""
