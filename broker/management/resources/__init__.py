"""What the API shows and changes: a module for each kind of thing."""
