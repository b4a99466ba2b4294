"""Virtual time, network, members and load, all drawn from one seed."""
