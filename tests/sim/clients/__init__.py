"""The clients of simulated brokers: their behaviour, and the properties of their histories."""
