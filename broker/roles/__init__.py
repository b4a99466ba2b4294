"""Which member takes clients, where not all do: its role, and the rule by which it gets it."""
