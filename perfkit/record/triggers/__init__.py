"""Triggers: events that open a window outside the schedule."""
