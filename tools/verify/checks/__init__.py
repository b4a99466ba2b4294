"""Checks of what members ordered, agreed and stored."""
