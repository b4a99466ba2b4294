"""Voter sets, vote counting and reconfiguration: pure arithmetic."""
