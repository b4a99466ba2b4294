"""Counts, rates and metrics of a running cluster, from counts that each member keeps anyway."""
