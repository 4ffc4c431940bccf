"""What the numbers are computed in, and in which layout."""
