"""Voter sets, counting of votes, reconfiguration: arithmetic only."""
