"""Brokers that share a store, as processes."""
