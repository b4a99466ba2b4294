"""What operators ask of a running member, and what they order it to do."""
