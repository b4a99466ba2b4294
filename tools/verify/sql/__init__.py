"""Rules stated in SQL: how their rows are brought together, and how they are answered."""
