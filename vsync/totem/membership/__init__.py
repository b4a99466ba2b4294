"""Totem's membership protocol: gather, commit, recovery, failure detection."""
