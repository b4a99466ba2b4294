"""Unit tests of the check beside a running cluster."""
