"""Deterministic simulation: the real code on a virtual clock, with seeded faults and scheduling."""
