"""Unit tests of client histories as evidence."""
