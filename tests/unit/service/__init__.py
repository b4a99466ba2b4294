"""Tests of the log, notifications and other duties of a service."""
