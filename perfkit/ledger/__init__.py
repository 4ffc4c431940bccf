"""The step's time, partitioned: each nanosecond has one owner; rules claim it."""
