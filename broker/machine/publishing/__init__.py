"""What a message brings along as it is published: numbers, further keys, parts of its body."""
