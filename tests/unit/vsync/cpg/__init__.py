"""Unit tests of `vsync/cpg`."""
