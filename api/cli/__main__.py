"""`python -m api.cli`."""

from api.cli import main

# Verification spawns processes, which import this module under another name.
if __name__ == "__main__":
    main()
