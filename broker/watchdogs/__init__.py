"""A member's watch over its own machine: clocks, disk, pauses, and its lease."""
