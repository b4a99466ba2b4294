"""Clients' identities, and whether this member admits them now."""
