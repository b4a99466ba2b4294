"""Unit tests of the check of a running cluster."""
