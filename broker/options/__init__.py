"""The options that an operator may set, read and validated before anything is opened."""
