"""Everything that faces outwards: HTTP, the command line, the schedule."""
