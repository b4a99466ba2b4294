"""Unit tests of how logs are found and read."""
