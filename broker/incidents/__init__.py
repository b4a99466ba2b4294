"""Evidence of a member's own faults: incident reports and quarantined commands."""
