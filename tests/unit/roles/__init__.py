"""Tests of the roles of members."""
