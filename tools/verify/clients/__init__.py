"""Checks of clients' histories against the members' logs."""
