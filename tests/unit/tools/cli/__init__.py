"""What all commands share: options, signals, output and exit codes."""
