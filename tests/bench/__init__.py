"""Benchmarks: costs and throughput of the machine, the ring and the brokers."""
