"""After a rewind: snapshots, evidence, verification, and the recovery of a store from its journal."""
