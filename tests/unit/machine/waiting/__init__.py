"""What is published, and by whom."""
