"""A copy of this machine's /etc for programs in a mount namespace of their own, whose accounts are nobody else's."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

_ENTER: Final = """
set -e
mount --bind "$1" /etc
shift
exec "$@"
"""


def copy_etc(target: Path) -> None:
    """`target` is made. Without libvirt's folder: definitions of other tests' guests come and go in it, and a file that
    goes while it is copied fails the copy."""
    target.mkdir()
    with subprocess.Popen(["tar", "-C", "/etc", "--exclude=./libvirt", "-c", "."], stdout=subprocess.PIPE) as packing:
        subprocess.run(["tar", "-C", str(target), "-x"], stdin=packing.stdout, check=True)
    # 1: another file has changed or gone meanwhile.
    assert packing.returncode in (0, 1), "/etc was not copied"


def with_etc(etc: Path, *program: str, namespaces: tuple[str, ...] = ()) -> list[str]:
    """The command by which `program` and what it starts have `etc` for their /etc. `namespaces`: further options of
    unshare(1)."""
    apart = ("unshare", "--mount", "--propagation", "private", *namespaces)
    return [*apart, "sh", "-c", _ENTER, "sh", str(etc), *program]
