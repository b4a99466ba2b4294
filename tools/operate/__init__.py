"""Commands over the management API: qpidctl, qpid-stat, qpid-config."""
