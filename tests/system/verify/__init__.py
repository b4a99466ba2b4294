"""The consistency check on logs of real and simulated members."""
