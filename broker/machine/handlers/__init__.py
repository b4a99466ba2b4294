"""One handler for each command of the machine."""
