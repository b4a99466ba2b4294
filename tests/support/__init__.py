"""Harnesses that several kinds of tests share."""
