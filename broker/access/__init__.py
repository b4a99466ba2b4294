"""Access control: who may log in, and what they may do: passwords, permissions, limits (pure)."""
