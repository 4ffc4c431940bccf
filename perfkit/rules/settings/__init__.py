"""Rules on settings of torch and of the process."""
