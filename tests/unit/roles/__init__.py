"""Tests of the members' roles."""
