"""Pages for operators, followed word by word."""
