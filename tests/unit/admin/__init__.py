"""Tests of operators' requests to a member."""
