"""Windows: which steps are recorded in detail, by which recorders, into which files, and the extra steps after them."""
