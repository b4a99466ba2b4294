"""Shovels and federation links, which move messages between this cluster and other brokers."""
