"""What members find wrong with their cluster, asked of one or several, and shown."""
