"""Side by side with peers and floors: `python -m benchmarks [NAME ...] [--rounds N] [--quick]`.

Every measure is a ratio of two figures taken in one run on one machine, at the same durability and
over the same data; absolute figures are printed only to be read beside each other.
"""
