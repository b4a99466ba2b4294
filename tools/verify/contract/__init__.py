"""Checks of the queue contract: what may happen to a message in a queue."""
