"""Queues, routing, dispatch to consumers, dead letters."""
