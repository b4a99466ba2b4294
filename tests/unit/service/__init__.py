"""Tests of the log, notices and other duties of a service."""
