"""Who clients are, and whether this member takes them now."""
