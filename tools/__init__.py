"""The commands that operators type, and the check of the members' logs."""
