"""What is wrong with a cluster, from what its members say, and what to do about it (pure)."""
