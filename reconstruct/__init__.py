"""After a rewind: snapshots, evidence, verification, and recovering a store from its journal."""
