"""Consistency check of the members' logs against what a cluster promises: a Spark job."""
