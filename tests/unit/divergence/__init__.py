"""Unit tests of `divergence`."""
