"""Unit tests of finding and reading logs."""
