"""What operators type: one module per command."""
