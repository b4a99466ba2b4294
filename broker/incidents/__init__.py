"""What a member keeps of a fault of its own: incident reports and quarantined commands."""
