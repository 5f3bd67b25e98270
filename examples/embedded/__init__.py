"""An application in one process with unrewind, its own tables in unrewind's store."""
