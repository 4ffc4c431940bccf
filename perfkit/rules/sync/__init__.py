"""Rules on host and device waiting for each other."""
