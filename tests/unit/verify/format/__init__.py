"""Tests of the check's own decoder of the logs."""
