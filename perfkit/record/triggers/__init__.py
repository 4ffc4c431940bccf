"""Triggers: events that open a window outside the schedule, and what is kept of the exception that ends a run."""
