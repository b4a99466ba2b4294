"""What must be true of a history, checked as it grows and at its end."""
