"""Rules on how batches are made and loaded."""
