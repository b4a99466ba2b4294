"""Queries to a running ring member, and its replies."""
