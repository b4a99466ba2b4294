"""Findings: what members report to be wrong with their cluster, collected and shown."""
