"""Who may log in, and who may do what: passwords, permissions, limits (pure)."""
