"""What a process does to the files of a folder, in order: strace's record of it, read back."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_CALLS = (
    "openat,write,pwrite64,pwritev,pwritev2,writev,ftruncate,truncate,fallocate,rename,renameat,"
    "renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,link,linkat,symlink,symlinkat,fsync,fdatasync,"
    "sync_file_range,lseek,copy_file_range,sendfile"
)
_LONGEST = 1 << 24
_LINE = re.compile(r"(\d+) +(?:(\w+)\((.*)|<\.\.\. (\w+) resumed>(.*))")
_RESULT = re.compile(r"\) += (-?\d+|\?)(?:<.*>)?(?: [A-Z]\w+ \(.*\))?$")
_UNFINISHED = " <unfinished ...>"


class Write(NamedTuple):
    """Bytes put into a file. Numbers name files and directories as they were opened or made."""

    file: int
    offset: int
    data: bytes


class Resize(NamedTuple):
    """A file cut off, or grown by zeros."""

    file: int
    size: int


class Rename(NamedTuple):
    """Names of one directory changed at once; None: nothing has the name any more.

    ``makes`` says that what has the name now is a new directory.
    """

    directory: int
    changes: tuple[tuple[str, int | None], ...]
    makes: bool = False


class Sync(NamedTuple):
    """What was done to a file or directory ``before`` that step is on the disk from now on."""

    file: int
    before: int


class Mark(NamedTuple):
    """A line that the process wrote to its marks."""

    kind: str
    name: str
    facts: dict[str, Any]


Step = Write | Resize | Rename | Sync | Mark


def recorded(command: Sequence[str], folder: Path, trace: Path, marks: str) -> list[Step]:
    """Run a command to its end; what it did below a folder, and the lines of its marks there."""
    watched = ["strace", "-f", "-y", "-xx", "-s", str(_LONGEST), "-e", f"trace={_CALLS}"]
    subprocess.run([*watched, "-o", str(trace), *command], check=True)
    with trace.open() as lines:
        return [*_Reader(folder, marks).steps(lines)]


class _Call(NamedTuple):
    name: str
    arguments: list[str]
    result: int
    begun: int


class _Reader:
    """From calls, by descriptor and path, to what was done to which file."""

    def __init__(self, folder: Path, marks: str) -> None:
        self.root = str(folder)
        self.marks = str(folder / marks)
        self.hex = _hex(self.root)
        self.names: dict[str, int] = {self.root: 0}
        self.sizes: dict[int, int] = {}
        self.opened: dict[int, tuple[int, bool]] = {}
        self.at: dict[int, int] = {}
        self.count = 0
        self.line = b""

    def steps(self, lines: Iterator[str]) -> Iterator[Step]:
        for call in self._calls(lines):
            for step in self._of(call):
                self.count += 1
                yield step

    def _calls(self, lines: Iterator[str]) -> Iterator[_Call]:
        """Successful calls, in the order in which they ended."""
        waiting: dict[str, tuple[str, int]] = {}
        for line in lines:
            found = _LINE.match(line)
            if found is None:
                continue
            pid, name, rest, resumed, end = found.groups()
            begun = self.count
            if resumed is not None:
                name = resumed
                before, begun = waiting.pop(pid)
                rest = before + end
            elif rest.endswith(_UNFINISHED):
                waiting[pid] = (rest.removesuffix(_UNFINISHED), begun)
                continue
            if self.hex not in rest:
                continue
            ended = _RESULT.search(rest)
            assert ended is not None, line[-200:]
            if ended[1] != "?" and int(ended[1]) >= 0:
                arguments = rest[: ended.start()].split(", ")
                yield _Call(name, arguments, int(ended[1]), begun)

    def _of(self, call: _Call) -> Iterator[Step]:
        make = getattr(self, f"_{call.name}", None)
        assert make is not None, f"{call.name} is not understood: teach it to this file"
        return make(call)

    # What makes and removes names.

    def _openat(self, call: _Call) -> Iterator[Step]:
        path = _text(call.arguments[1])
        if not self._inside(path):
            return
        flags = call.arguments[2].split("|")
        fresh = path not in self.names
        if fresh:
            assert "O_CREAT" in flags, path
            yield from self._link(path)
        file = self.names[path]
        self.opened[call.result] = (file, "O_APPEND" in flags)
        self.at[call.result] = 0
        if "O_TRUNC" in flags and self.sizes.get(file):
            self.sizes[file] = 0
            yield Resize(file, 0)

    def _mkdir(self, call: _Call) -> Iterator[Step]:
        path = _text(call.arguments[0])
        if self._inside(path):
            yield from self._link(path, makes=True)

    def _link(self, path: str, *, makes: bool = False) -> Iterator[Step]:
        file = self.names[path] = len(self.sizes) + 1
        self.sizes[file] = 0
        if path != self.marks:
            yield Rename(self._directory(path), ((path, file),), makes)

    def _unlink(self, call: _Call) -> Iterator[Step]:
        path = _text(call.arguments[0])
        if self.names.pop(path, None) is not None:
            yield Rename(self._directory(path), ((path, None),))

    def _rename(self, call: _Call) -> Iterator[Step]:
        old, new = _text(call.arguments[0]), _text(call.arguments[1])
        assert os.path.dirname(old) == os.path.dirname(new), (old, new)  # noqa: PTH120
        self.names[new] = self.names.pop(old)
        yield Rename(self._directory(new), ((new, self.names[new]), (old, None)))

    # What changes files.

    def _pwrite64(self, call: _Call) -> Iterator[Step]:
        file, _ = self.opened[_descriptor(call)]
        return self._wrote(file, int(call.arguments[3]), _bytes(call.arguments[1])[: call.result])

    def _write(self, call: _Call) -> Iterator[Step]:
        handle = _descriptor(call)
        file, appends = self.opened[handle]
        data = _bytes(call.arguments[1])[: call.result]
        if self.names.get(self.marks) == file:
            return self._marked(data)
        offset = self.sizes[file] if appends else self.at[handle]
        self.at[handle] = offset + len(data)
        return self._wrote(file, offset, data)

    def _wrote(self, file: int, offset: int, data: bytes) -> Iterator[Step]:
        self.sizes[file] = max(self.sizes[file], offset + len(data))
        yield Write(file, offset, data)

    def _lseek(self, call: _Call) -> Iterator[Step]:
        self.at[_descriptor(call)] = call.result
        return iter(())

    def _ftruncate(self, call: _Call) -> Iterator[Step]:
        file, _ = self.opened[_descriptor(call)]
        self.sizes[file] = int(call.arguments[1])
        yield Resize(file, self.sizes[file])

    def _fsync(self, call: _Call) -> Iterator[Step]:
        yield Sync(self.opened[_descriptor(call)][0], call.begun)

    _fdatasync = _fsync

    def _marked(self, data: bytes) -> Iterator[Step]:
        *lines, self.line = (self.line + data).split(b"\n")
        for line in lines:
            yield Mark(*json.loads(line))

    def _inside(self, path: str) -> bool:
        return path == self.root or path.startswith(f"{self.root}/")

    def _directory(self, path: str) -> int:
        return self.names[os.path.dirname(path)]  # noqa: PTH120


def _hex(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode())


def _bytes(argument: str) -> bytes:
    assert argument.endswith('"'), argument[-20:]
    return bytes.fromhex(argument.strip('"').replace("\\x", ""))


def _text(argument: str) -> str:
    return _bytes(argument).decode()


def _descriptor(call: _Call) -> int:
    return int(call.arguments[0].partition("<")[0])
