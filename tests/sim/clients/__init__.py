"""The clients of simulated brokers: what they do, and what their histories must show."""
