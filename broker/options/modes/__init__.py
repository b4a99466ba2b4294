"""The options of modes in which one broker serves clients and others stand by."""
