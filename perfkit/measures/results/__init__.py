"""The numbers that measures give and rules read: frozen, in ns, each with where it came from.

Not measured = None, never zero. Times and counts are totals over ``steps`` steps unless a field says
"per step".
"""
