"""An application that pays money out, and decides inside its own transactions."""
