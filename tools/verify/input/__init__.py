"""Member logs and client histories as rows."""
