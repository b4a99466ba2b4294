"""Evidence that tests leave behind: log ends of a failed test, and member logs to be checked."""
