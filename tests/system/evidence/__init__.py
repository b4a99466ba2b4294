"""What tests leave behind: the ends of logs of a failing one, and member logs to be checked."""
