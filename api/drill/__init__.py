"""The drill: the failures that the design claims to survive, rehearsed with real processes.

In a directory of its own a service runs, is killed at every handoff, has its store put back, and is
recovered. An isolated receiver writes down every call. The verdict is read from what callers were
told, from that record and from the files, never from what the service says of itself alone.
"""
