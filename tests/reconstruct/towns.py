"""A tenant with lanes that is rewound and recovered."""

from __future__ import annotations

from tests.reconstruct.scenes import Scene
from tests.support.releases import Yard


class Town(Scene, Yard):
    """Releases, and every step of a recovery."""

    def finish_off(self) -> None:
        """Everything is whole, rows of work included; then let go of the files."""
        self.whole()
        self.close()
