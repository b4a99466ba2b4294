"""Manual pages of the installed commands, made from their help."""
