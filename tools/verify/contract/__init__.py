"""Checks of the queue contract, message by message."""
