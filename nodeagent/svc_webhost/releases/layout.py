"""The releases of the panel on a server, and which of them runs.

    releases/<release>/   a release: its packages, `bin/svc`, and its description, `release.json`
    current               a link to the release to start; without it the package's own is started
    order.json            an order to try a prepared release: written by the core
    trial.json            the release on trial: written by the switching program
    outcome.json          how the last trial ended; read by the core
    incoming/             where releases can be put by hand

A release's name is its version and the first 12 digits of its archive's SHA-256. The package's own has another place
and the name `package`. Invariants:

- everything with a name under `releases` is complete, and `current` always names an existing release;
- while `trial.json` exists, so does the previous release: any process that finds the file can go back to it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

PACKAGE: Final = "package"
"""The name of the release that the Debian package has installed."""
KEPT: Final = 2
"""How many releases are kept in addition to the running one."""
_NAME: Final = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Ports:
    """Ports on which the switching program visits this server."""

    web: int
    sites: int


@dataclass(frozen=True)
class Trial:
    """`release` is tried as a replacement of `before`. `boot` is the kernel's boot id at the time of the order: after a
    reboot the order is void. `domains` are sites to visit before and after."""

    job: int
    release: str
    before: str
    boot: str
    socket: str
    ports: Ports
    domains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """`kept`: the release stays; otherwise `reason` says why not. `silent`: domains that answered before the trial and
    did not after it."""

    job: int
    release: str
    before: str
    kept: bool
    reason: str | None = None
    silent: tuple[str, ...] = ()


def release_name(version: str, sha256: str) -> str:
    name = f"{version}-{sha256[:12]}"
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name of a release")
    return name


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Releases:
    """`root` is /opt/svc-panel, `package` the folder of the Debian package's own release. All methods may be
    repeated."""

    def __init__(self, root: Path, package: Path) -> None:
        self.root = root
        self.releases = root / "releases"
        self.incoming = root / "incoming"
        self._package = package
        self._current = root / "current"
        self._order, self._trial, self._outcome = (root / f"{name}.json" for name in ("order", "trial", "outcome"))

    def folder(self, release: str) -> Path:
        if release == PACKAGE:
            return self._package
        if _NAME.fullmatch(release) is None:
            raise ValueError(f"{release!r} is no name of a release")
        return self.releases / release

    def current(self) -> str:
        try:
            return Path(os.readlink(self._current)).name
        except FileNotFoundError:
            return PACKAGE

    def names(self) -> list[str]:
        """The installed releases without the package's own, the newest last."""
        found = self.releases.iterdir() if self.releases.is_dir() else iter(())
        return sorted((each.name for each in found if _NAME.fullmatch(each.name)), key=_age)

    def switch(self, release: str) -> None:
        """Make `release` the one to start from now on."""
        if not self.folder(release).is_dir():
            raise FileNotFoundError(f"There is no release {release}.")
        if release == PACKAGE:
            self._current.unlink(missing_ok=True)
        else:
            link = self._current.with_suffix(".next")
            link.unlink(missing_ok=True)
            link.symlink_to(Path("releases") / release)
            link.rename(self._current)
        _sync(self.root)

    def order(self, trial: Trial) -> None:
        _write(self._order, asdict(trial))

    def ordered(self) -> bool:
        return self._order.exists()

    def withdraw(self) -> None:
        """Withdraw an order that was not taken."""
        self._order.unlink(missing_ok=True)

    def take_order(self, boot: str) -> Trial | None:
        """Turn the order into the trial: from now on a process that finds the trial goes back to the previous release.
        An order of another boot is dropped."""
        trial = _trial_in(self._order)
        if trial is None or trial.boot != boot:
            self.withdraw()
            return None
        try:
            self._order.rename(self._trial)
        except FileNotFoundError:
            return None  # The order was withdrawn at this moment.
        _sync(self.root)
        return trial

    def trial(self) -> Trial | None:
        return _trial_in(self._trial)

    def write_outcome(self, outcome: Outcome) -> None:
        """The file stays until the next outcome. It allows the previous release to work with the newer schema that the
        trial has left. Raises OSError."""
        _write(self._outcome, asdict(outcome))

    def outcome(self) -> Outcome | None:
        found = _read(self._outcome)
        return Outcome(**{**found, "silent": tuple(found["silent"])}) if found is not None else None

    def returned_to(self, release: str) -> bool:
        """Whether this release runs because the trial of a newer one failed, or is about to."""
        trial = self.trial()
        if trial is not None:
            return trial.before == release
        outcome = self.outcome()
        return outcome is not None and not outcome.kept and outcome.before == release

    def end_trial(self) -> None:
        self._trial.unlink(missing_ok=True)
        _sync(self.root)

    def prune(self, *kept: str) -> None:
        """Remove releases, and leftovers of incomplete ones, except the running one, the named ones, and the newest two
        that are older than the running one."""
        running = self.current()
        others = [name for name in self.names() if running == PACKAGE or _age(name) < _age(running)]
        stay = {running, *kept, *others[-KEPT:]}
        for found in self.releases.iterdir() if self.releases.is_dir() else ():
            if found.name in stay:
                continue
            if found.is_dir() and not found.is_symlink():
                shutil.rmtree(found)
            else:
                found.unlink()  # An archive whose download was interrupted by the core's end.


def _age(name: str) -> tuple[int, ...]:
    return tuple(map(int, name.partition("-")[0].split(".")))


def _trial_in(path: Path) -> Trial | None:
    found = _read(path)
    if found is None:
        return None
    return Trial(**{**found, "ports": Ports(**found["ports"]), "domains": tuple(found["domains"])})


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return found


def _write(path: Path, content: dict[str, Any]) -> None:
    """Completely or not at all, and on disk when this returns."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
