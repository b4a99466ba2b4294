"""Views, recoveries and faults as text files, and the engine that plays them."""
