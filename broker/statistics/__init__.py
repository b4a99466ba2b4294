"""Counts, rates and metrics of a running cluster, from what each member has counted anyway."""
