"""System tests of a broker as a service of its machine."""
