"""Brokers in the simulator: clients, disks, transfers, and the judge of their histories."""
