"""A disk that loses power: what was synced is there, and of the rest what chance leaves of it.

The model is the strictest that POSIX allows. A write is on the disk once its file was synced, a
name once its directory was; synced directories keep what was done to their names in order. Memory
that is mapped is lost.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from tests.faults.recording import Mark, Rename, Resize, Step, Sync, Write

Image = Iterable[tuple[str, bytes | None]]
"""Paths below the root, parents first, with their content; None: a directory."""

SECTOR = 512
_MAPPED = "-shm"


class Disk:
    """The files of a folder, as a record of steps leaves them."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.files: dict[int, bytearray] = {}
        self.names: dict[str, int] = {self.root: 0}
        self.waiting: list[tuple[int, Write | Resize | Rename]] = []
        self.directories = {0}
        self.count = 0

    def makes_durable(self, step: Step) -> bool:
        """Whether something that waits is on the disk once this step is done."""
        return isinstance(step, Sync) and any(
            one[0] == step.file and number < step.before for number, one in self.waiting
        )

    def take(self, step: Step) -> None:
        """Do a step."""
        number, self.count = self.count, self.count + 1
        if isinstance(step, Mark):
            return
        if isinstance(step, Rename) and step.makes:
            self.directories.update(file for _, file in step.changes if file is not None)
        if not isinstance(step, Sync):
            self.waiting.append((number, step))
            return
        kept: list[tuple[int, Write | Resize | Rename]] = []
        for begun, one in self.waiting:
            if one[0] == step.file and begun < step.before:
                _do(one, self.files, self.names)
            else:
                kept.append((begun, one))
        self.waiting = kept

    # What is there when the power comes back.

    def lost(self) -> Image:
        """Everything that was not synced is lost."""
        return self._image(self.files, self.names)

    def kept(self) -> Image:
        """Nothing is lost: the process alone has ended."""
        return self._after([one for _, one in self.waiting])

    def torn(self, dice: random.Random) -> Image:
        """All of it but the end of the newest write."""
        some: list[Write | Resize | Rename] = [one for _, one in self.waiting]
        for at in range(len(some) - 1, -1, -1):
            one = some[at]
            if isinstance(one, Write):
                some[at] = _torn(one, dice)
                break
        return self._after(some)

    def some(self, dice: random.Random) -> Image:
        """Each write by a throw of the dice, whole or torn; of each directory the first changes."""
        chance = dice.choice((0.1, 0.5, 0.9))
        ended: set[int] = set()
        some: list[Write | Resize | Rename] = []
        for _, one in self.waiting:
            survives = dice.random() < chance
            if isinstance(one, Rename):
                if one.directory in ended or not survives:
                    ended.add(one.directory)
                    continue
            elif not survives:
                continue
            some.append(_torn(one, dice) if isinstance(one, Write) and dice.random() < 0.1 else one)
        return self._after(some)

    def _after(self, some: list[Write | Resize | Rename]) -> Image:
        names = dict(self.names)
        touched = {one[0] for one in some if not isinstance(one, Rename)}
        files = {
            number: bytearray(data) if number in touched else data
            for number, data in self.files.items()
        }
        for one in some:
            _do(one, files, names)
        return self._image(files, names)

    def _image(self, files: dict[int, bytearray], names: dict[str, int]) -> Image:
        """Parents before what is in them; what hangs on a lost directory is lost with it."""
        found = {self.root}
        for path in sorted(names):
            if path.rpartition("/")[0] not in found or path.endswith(_MAPPED):
                continue
            found.add(path)
            below = path.removeprefix(f"{self.root}/")
            yield (
                below,
                None if names[path] in self.directories else bytes(files.get(names[path], b"")),
            )


def _do(step: Write | Resize | Rename, files: dict[int, bytearray], names: dict[str, int]) -> None:
    if isinstance(step, Rename):
        for path, named in step.changes:
            if named is None:
                names.pop(path, None)
            else:
                names[path] = named
        return
    file = files.setdefault(step.file, bytearray())
    if isinstance(step, Resize):
        del file[step.size :]
        file.extend(bytes(step.size - len(file)))
        return
    end = step.offset + len(step.data)
    file.extend(bytes(max(0, end - len(file))))
    file[step.offset : end] = step.data


def _torn(write: Write, dice: random.Random) -> Write:
    """What is left of a write that ended between two sectors, or in the middle of a small one."""
    size = len(write.data)
    end = dice.randrange(size // SECTOR + 1) * SECTOR if size > SECTOR else dice.randrange(size + 1)
    return Write(write.file, write.offset, write.data[:end])
