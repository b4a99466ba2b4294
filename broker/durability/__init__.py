"""A member's durable state: its writing, its recovery at a start, and its copying from a donor."""
