"""What a message brings along as it is published, and publishes and acks that come in runs."""
