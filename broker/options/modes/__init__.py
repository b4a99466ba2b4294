"""Options of the modes in which one broker serves clients and the others stand by."""
