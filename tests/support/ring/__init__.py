"""Harnesses for tests of the ring."""
