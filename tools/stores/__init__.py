"""What operators do with the store of a member that is stopped, and with copies of stores."""
