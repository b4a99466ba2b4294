"""Rules that are stated in SQL: how the rows they need are brought together, and answered."""
