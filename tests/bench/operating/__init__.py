"""What it costs to look at a cluster while it runs, and to change much of it at once."""
