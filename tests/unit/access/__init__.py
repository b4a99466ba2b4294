"""Tests of logins, passwords and access rights."""
