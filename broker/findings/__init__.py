"""Findings: what is wrong with a cluster and what to do, from one member's knowledge of all."""
