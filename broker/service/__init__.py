"""What makes a member a service of its machine: its log, its manager's notices, SIGHUP."""
