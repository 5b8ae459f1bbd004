"""A script that stands in for restic in a mount namespace of its own, where repositories in folders get cheap keys.

All but `init` it hands on to restic itself. Why keys are made cheap: tests/support/cheap_keys.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

ITSELF = "/run/svc-tests/restic"
_ROOT = Path(__file__).parents[2]
_STAND_IN = f"""#!/bin/sh
for word; do
    if [ "$word" = init ]; then
        PYTHONPATH={_ROOT} exec {sys.executable} -m tests.support.cheap_keys "$@"
    fi
done
exec {ITSELF} "$@"
"""
STAND_IN = f"""
if [ -e /usr/bin/restic ] && [ ! -s {ITSELF} ]; then
    mkdir -p /run/svc-tests
    : >>{ITSELF}
    mount --bind /usr/bin/restic {ITSELF}
    mount --bind "$RESTIC" /usr/bin/restic
fi
"""
"""Lines of a shell script in a mount namespace of its own; RESTIC is what `write_stand_in` gave."""


def write_stand_in(folder: Path) -> Path:
    script = folder / "restic-stand-in"
    script.write_text(_STAND_IN)
    script.chmod(0o755)
    return script


def with_cheap_keys(folder: Path, *program: str) -> tuple[str, ...]:
    """The command by which `program`, in a mount namespace of its own already, makes repositories with cheap keys."""
    return ("sh", "-ec", f'RESTIC=$0\n{STAND_IN}\nexec "$@"', str(write_stand_in(folder)), *program)
