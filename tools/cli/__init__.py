"""What all commands share: options, files of options, progress."""
