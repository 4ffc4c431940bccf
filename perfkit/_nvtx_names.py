"""Names under which tools of NVTX show what perfkit marks. Importing them has no effect, unlike `perfkit.ranges`."""

#: The default domain of ranges.
DOMAIN = "perfkit"
#: The range around a window, by which a report can be cut.
WINDOW = "perfkit.window"
