"""The PostgreSQL cluster that test processes start from: made once, kept in build/, copied by each of them.

It has the template databases with every migration applied. To initialise and migrate one takes a second of processor
time, to copy it a tenth. A kept cluster is of the files that made it: whoever changes a migration gets another. It is
kept for a day, so that the times in its rows are never much older than a test expects.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import trio

from svc_actors.store import (
    CONTROLLER_SCHEMA,
    PANEL_SCHEMA,
    Component,
    Database,
    embedded,
    grant_service,
    known_migrations,
    migrate,
)
from svc_actors.store.embedded import OWNER_ROLE, PROGRAMS, SERVICE_ROLE
from svc_actors.store.reach import server_account

SUPERUSER: Final = "postgres"
ROOT: Final = Path(__file__).parents[2]
_KEPT: Final = ROOT / "build" / "tests-database"
_KEPT_SECONDS: Final = 24 * 3600
TEMPLATES: Final[Mapping[str, tuple[Component, ...]]] = {
    "svc_template": CONTROLLER_SCHEMA,
    "svc_panel_template": PANEL_SCHEMA,
}


async def lay_out_cluster(folder: Path, settings: Mapping[str, str]) -> None:
    """Put a cluster with the templates into `folder`, which is empty, for `embedded` to serve."""
    if not await trio.to_thread.run_sync(_copied, folder):
        await _make(folder, settings)
        await trio.to_thread.run_sync(_keep, folder)


async def _make(folder: Path, settings: Mapping[str, str]) -> None:
    async with embedded(folder, settings=settings) as url:
        async with Database.open(url.replace(f"//{OWNER_ROLE}@", f"//{SUPERUSER}@", 1), size=1) as administration:
            for name in TEMPLATES:
                await administration.execute(f"CREATE DATABASE {name} OWNER {OWNER_ROLE}")
        for name, components in TEMPLATES.items():
            async with Database.open(url.replace("/svc?", f"/{name}?", 1), size=1) as template:
                await migrate(template, known_migrations(components))
                await grant_service(template, SERVICE_ROLE)
                # Tests make tables of their own.
                await template.execute(f"GRANT CREATE ON SCHEMA public TO {SERVICE_ROLE}")


def _copied(folder: Path) -> bool:
    kept = _kept()
    if not kept.exists() or _is_old(kept):
        return False
    folder.mkdir()
    if _copy(kept, folder / "cluster"):
        return True
    shutil.rmtree(folder)
    return False


def _keep(folder: Path) -> None:
    """Another process may keep the same one at the same time. Where nothing can be kept, each makes its own."""
    kept = _kept()
    new = kept.with_name(f"{kept.name}.{os.getpid()}")
    try:
        _KEPT.mkdir(parents=True, exist_ok=True)
        for old in filter(_is_old, _KEPT.iterdir()):
            shutil.rmtree(old, ignore_errors=True)
        if _copy(folder / "cluster", new):
            # Its server syncs nothing: a power failure would leave half of it for a day.
            os.sync()
            os.utime(new)
            new.rename(kept)
    except OSError:
        pass
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _is_old(kept: Path) -> bool:
    return time.time() - kept.stat().st_mtime > _KEPT_SECONDS


def _copy(source: Path, target: Path) -> bool:
    """Owners are kept: the server does not run as root."""
    command = ["cp", "--archive", "--reflink=auto", str(source), str(target)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _kept() -> Path:
    found = hashlib.sha256(f"{os.geteuid()} {server_account()}\n".encode())
    for path in _makers():
        found.update(f"{path} {path.stat().st_size}\n".encode())
        found.update(path.read_bytes())
    program = (PROGRAMS / "postgres").stat()
    found.update(f"{PROGRAMS} {program.st_size} {program.st_mtime_ns}".encode())
    return _KEPT / found.hexdigest()[:16]


def _makers() -> Iterator[Path]:
    yield Path(__file__)
    store = ROOT / "actors" / "svc_actors" / "store"
    yield from sorted(path for kind in ("py", "sql", "json") for path in store.rglob(f"*.{kind}"))
