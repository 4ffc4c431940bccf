"""Reports: one format per file; each takes data and where to write it, and returns nothing."""
