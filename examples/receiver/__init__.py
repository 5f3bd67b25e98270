"""A receiver to test against: it plays the service at the far end of a lane, and its bad days."""
