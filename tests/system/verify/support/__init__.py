"""Logs, histories and Spark sessions for tests of the check."""
