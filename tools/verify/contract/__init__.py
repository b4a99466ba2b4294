"""Checks the queue contract: the allowed moves of a message in a queue."""
