"""The member log: what one incarnation of a member saw, applied and promised, for later proof."""
