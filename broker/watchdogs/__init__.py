"""What a member watches of its own machine: clocks, disk, pauses, and its lease."""
