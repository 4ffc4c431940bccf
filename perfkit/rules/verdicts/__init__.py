"""Rules that only apply when no problem was found: why the step is healthy, or why that is unknown."""
