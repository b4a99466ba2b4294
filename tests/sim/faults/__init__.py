"""Faults of members, links, disks and clocks in the simulator."""
