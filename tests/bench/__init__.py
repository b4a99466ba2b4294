"""Benchmarks: what the machine, the ring and the brokers cost and carry."""
