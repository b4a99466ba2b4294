"""The resources that the API shows and changes, one module for each kind."""
