"""The layers above the ring in a simulation: none, groups, a log, an oracle."""
