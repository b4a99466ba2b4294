"""What members must have in common to compute the same.

The ring refuses a member with another version at the door, with a sentence, before a digest vote
would have to: raise it with every change of a command's shape, an outcome, an order, or a hash.
"""

MACHINE_VERSION = 7
