"""What is stacked upon the ring in a simulation: nothing, groups, a log."""
