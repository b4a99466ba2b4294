"""Cluster time, and the voters whose clocks and votes it rests on."""
