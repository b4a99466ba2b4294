"""Operators' pages, followed word by word."""
