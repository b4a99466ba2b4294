"""Questions to a running member of a ring, and the answers."""
