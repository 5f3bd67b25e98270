"""Which filesystem a directory lies on: SQLite's locks and syncs are not safe over a network."""

from __future__ import annotations

import os
from pathlib import Path

from journal.errors import Refused

NETWORK = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb",
        "smb2",
        "smb3",
        "smbfs",
        "afs",
        "9p",
        "ceph",
        "glusterfs",
        "lustre",
        "gpfs",
        "beegfs",
        "ocfs2",
        "gfs2",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.davfs",
        "davfs",
        "webdav",
    }
)
_MOUNTS = Path("/proc/self/mountinfo")


def filesystem_of(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """The type of the filesystem that holds ``path``; None where the system does not say."""
    try:
        text = mounts.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    wanted = os.path.realpath(path)
    best, kind = "", None
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split(" ")
        if not separator or len(fields) < 5:  # noqa: PLR2004 - proc_pid_mountinfo(5)
            continue
        point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = wanted == point or wanted.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split(" ", 1)[0]
    return kind


def check_filesystem(path: Path, mounts: Path = _MOUNTS) -> None:
    """Refuse a network filesystem. Raises Refused naming the override."""
    kind = filesystem_of(path, mounts)
    if kind in NETWORK:
        raise Refused(
            f"{path} is on a network filesystem ({kind}), where SQLite can lose commits; "
            "use a local disk, or set allow_network_filesystem = true if you know better"
        )


def same_device(one: Path | None, other: Path | None) -> bool | None:
    """Whether two files share a device; None when either is missing, or on a server."""
    if one is None or other is None:
        return None
    try:
        return one.stat().st_dev == other.stat().st_dev
    except OSError:
        return None
