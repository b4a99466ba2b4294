"""What it costs to look at a cluster while it runs."""
