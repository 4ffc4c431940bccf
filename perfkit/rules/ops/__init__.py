"""Rules on which ops run, in which precision, layout and number."""
