"""Checks clients' histories against the members' logs."""
