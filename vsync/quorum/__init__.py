"""Voter sets, vote counting, reconfiguration: pure arithmetic."""
