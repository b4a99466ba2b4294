"""Code shared by all commands: options, option files, progress."""
