"""The member log: what one life of one member saw, applied and promised, for later proof."""
