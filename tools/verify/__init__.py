"""Checks the members' logs against a cluster's promises: a Spark job."""
