"""What a member does as time passes."""
