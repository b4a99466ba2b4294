"""What a member does because time passes."""
