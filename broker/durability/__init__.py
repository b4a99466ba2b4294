"""What a member keeps on disk, finds there at its start, and copies from a donor."""
