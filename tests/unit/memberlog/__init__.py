"""Unit tests of `memberlog`."""
