"""What was found, as text, page and progress."""
