"""Unit tests of `frontend`."""
