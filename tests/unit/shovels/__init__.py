"""Shovels, without a process or a socket."""
