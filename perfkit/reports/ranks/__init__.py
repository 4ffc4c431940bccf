"""Reports on many ranks: one format per file."""
