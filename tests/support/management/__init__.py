"""A member with the management API in one process, and the permissions that each path demands."""
