"""From an ordered item to applied state, and from a client command to an ordered item (pure)."""
