"""Tests with real processes, sockets and disks."""
