"""Tests: properties."""
