"""Tests: scenarios."""
