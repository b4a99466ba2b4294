"""The cost of observing a running cluster, and of large changes to it."""
