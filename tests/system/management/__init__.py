"""The management API of real brokers, called as tools call it."""
