"""What clients say in arguments and headers, and what they are refused."""
