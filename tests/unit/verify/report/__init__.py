"""Unit tests of the reports for people."""
