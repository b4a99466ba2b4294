"""Cluster time, and the voters on whose clocks and votes it rests."""
