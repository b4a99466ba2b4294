"""The dashboard as an operator uses it, in a real browser."""
