"""Unit tests, a folder for each room."""
