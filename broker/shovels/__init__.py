"""Shovels: links that move messages between queues and exchanges, here and at other brokers."""
