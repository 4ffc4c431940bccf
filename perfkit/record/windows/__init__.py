"""Windows: the few steps that are recorded in detail, by which recorders, and what is done with the result."""
