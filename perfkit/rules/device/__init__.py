"""Rules on how well the device is kept busy."""
