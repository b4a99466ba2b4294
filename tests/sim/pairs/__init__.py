"""Pairs in the simulator: two members, clients that are actors, operators, the judge of G28."""
