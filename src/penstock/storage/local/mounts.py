"""Which file system a directory lies on, and whether its locks and renames can be trusted."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from penstock.core import printable
from penstock.errors import InvalidInput

_NETWORK = re.compile(
    "9p|afs|beegfs|ceph|cifs|coda|gfs2?|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|pvfs2|smb2|smb3|smbfs|"
    r"fuse\.(blobfuse2?|ceph|gcsfuse|glusterfs|goofys|juicefs|mount-s3|rclone|s3fs|sshfs)"
)
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount point and the type of file system on it."""

    point: str
    type: str


def refuse_network(directory: str) -> None:
    """Raise `InvalidInput` if the directory lies on a network file system, where the system shows it."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            mount = find_mount(directory, table.read())
    except OSError:
        return  # this system has no such table
    if mount and _NETWORK.fullmatch(mount.type):
        raise InvalidInput(
            f"{printable(directory)} is on a network file system ({mount.type}, mounted at {printable(mount.point)}), "
            "whose locks and renames do not hold between hosts: use a local disk, or an object store (s3://, gs://, az://)"
        )


def find_mount(directory: str, table: str) -> Mount | None:
    r"""Find the mount a directory lies on, in the text of `/proc/self/mountinfo`.

    >>> find_mount("/data/events", "21 1 8:1 / / rw - ext4 /dev/sda rw\n30 21 0:5 / /data rw - nfs4 host:/x rw")
    Mount(point='/data', type='nfs4')
    """
    inside = os.path.realpath(directory).rstrip("/") + "/"
    mounts = {}
    for line in table.split("\n"):
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if separator and len(fields) >= 5:
            point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
            mounts[fields[0]] = (fields[1], Mount(point, after.split(" ")[0]))
    # Walk down as the kernel does, from mount to mount: one that lies on a mount hidden by another is never reached.
    # What lies on a mount that the table does not show (in a chroot) counts as lying on the root.
    top = next(
        (
            number
            for number, (above, at) in mounts.items()
            if at.point == "/" and (above not in mounts or above == number)
        ),
        "",
    )
    parents = {number: above if above in mounts and above != number else top for number, (above, _) in mounts.items()}
    number: str | None = top
    found: Mount | None = None
    while number is not None:
        found = mounts.pop(number)[1] if number else None
        on_the_way = [
            (len(mount.point), child)
            for child, (_, mount) in mounts.items()
            if parents[child] == number and inside.startswith(mount.point.rstrip("/") + "/")
        ]
        number = min(on_the_way)[1] if on_the_way else None
    return found
