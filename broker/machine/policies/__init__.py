"""Policies: patterns, which settings there are, which policy applies, and what is in force."""
