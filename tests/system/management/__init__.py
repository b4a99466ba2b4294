"""The management API of real brokers, asked as tools ask it."""
