"""Shovels and links of federation, which move messages between here and other brokers."""
