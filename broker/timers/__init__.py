"""What a member does because time passes: its clock, and other duties (pure)."""
