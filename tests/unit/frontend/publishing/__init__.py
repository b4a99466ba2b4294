"""Publishing of large messages."""
