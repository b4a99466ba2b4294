"""Unit tests of `vsync`, a folder a room."""
