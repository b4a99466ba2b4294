"""A member as a service of its machine: its log, notices to the service manager, SIGHUP."""
