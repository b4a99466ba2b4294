"""Actions that a member takes as time passes: its clock, and other duties (pure)."""
