"""One module for each command that an operator types."""
