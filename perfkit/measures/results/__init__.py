"""The numbers that measures return and rules read: frozen Structs, times in ns.

What was not measured is None, never zero. Times and counts are totals over ``steps`` steps unless a field is described
as "per step".
"""
