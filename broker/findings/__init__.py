"""What is wrong with a cluster and what to do about it, from what one member knows of all."""
