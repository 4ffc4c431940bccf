"""Rules on Python code in the step."""
