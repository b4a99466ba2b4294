"""Policies: patterns and settings, which policy applies, its effects; and Qpid's queue options."""
