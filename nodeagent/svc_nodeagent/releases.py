"""The releases of the agent on a node: the layout of its folders, and how one release replaces another.

    releases/<release>/           the code of a release, its locks, and `bin/svc-nodeagent`
    releases/<release>/libraries  a link to the packages that it needs
    releases/current              a link to the release that runs
    releases/trial.json           a release that has not been accepted by the controller yet
    releases/returned.json        the last one that was given up, and why
    libraries/<digest>/           packages of others, by the digest of the locks that they were installed from

A release is named by its version and the first 12 digits of its wheel's SHA-256. Invariants:

- anything with a name under `releases` or `libraries` is complete, and `current` names a release at any moment;
- a release on trial was requested by the controller, and the previous release is still installed: so a process that
  finds `trial.json` can roll back.

This module uses only the standard library: it runs before anything else is installed, and must work even if a new
release does not.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

from svc_nodeagent.durable import sync_folder, write_whole

_PACKAGE = "svc_nodeagent"
_NAME = re.compile(r"[A-Za-z0-9.+]{1,64}-[0-9a-f]{12}")
_INSTALL_SECONDS = 600.0
_PROGRAM = """\
#!/usr/bin/python3 -I
import sys
from pathlib import Path

release = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(release), str(release / "libraries")]

from svc_nodeagent.cli import main

main()
"""


class NotInstalled(Exception):  # noqa: N818 - named for what it says
    """A release could not be installed; nothing that runs was touched."""


@dataclass(frozen=True)
class Trial:
    """`before` is the release to roll back to, `seconds` the time that `release` has; `order` tells attempts apart."""

    release: str
    before: str
    order: str
    seconds: float


@dataclass(frozen=True)
class Rollback:
    release: str
    order: str
    reason: str


def release_name(version: str, digest: str) -> str:
    """`digest` is the SHA-256 of the wheel, in hex."""
    name = f"{version}-{digest[:12]}"
    if not _NAME.fullmatch(name):
        raise NotInstalled(f"{name!r} is no name of a release")
    return name


class Releases:
    def __init__(self, data: Path) -> None:
        self.path = data / "releases"
        self._libraries = data / "libraries"
        self._current = self.path / "current"
        self._trial = self.path / "trial.json"
        self._returned = self.path / "returned.json"

    def current(self) -> str:
        return Path(os.readlink(self._current)).name

    def program(self, release: str) -> Path:
        return self.path / release / "bin" / _PACKAGE.replace("_", "-")

    def switch(self, release: str) -> None:
        link = self._current.with_suffix(".next")
        link.unlink(missing_ok=True)
        link.symlink_to(release)
        link.rename(self._current)
        sync_folder(self.path)

    def start_trial(self, trial: Trial) -> None:
        """Start `trial.release` from here on; the launcher rolls back if it is not accepted."""
        self._returned.unlink(missing_ok=True)
        write_whole(self._trial, json.dumps(asdict(trial)).encode(), mode=0o644)
        self.switch(trial.release)

    def trial(self) -> Trial | None:
        """The trial under way. A trial that a crash interrupted before it started does not count."""
        try:
            trial = Trial(**json.loads(self._trial.read_text()))
        except FileNotFoundError:
            return None
        if trial.release == self.current():
            return trial
        self._trial.unlink()
        return None

    def accept(self, release: str) -> bool:
        """The controller has accepted this release. Returns whether it was on trial."""
        trial = self.trial()
        if trial is None or trial.release != release:
            return False
        self._trial.unlink()
        sync_folder(self.path)
        return True

    def go_back(self, trial: Trial, reason: str) -> None:
        rollback = Rollback(trial.release, trial.order, reason)
        write_whole(self._returned, json.dumps(asdict(rollback)).encode(), mode=0o644)
        self.switch(trial.before)
        self._trial.unlink(missing_ok=True)

    def last_rollback(self) -> Rollback | None:
        try:
            return Rollback(**json.loads(self._returned.read_text()))
        except FileNotFoundError:
            return None

    def install(self, wheel: Path) -> str:
        """Unpack a wheel, with its dependencies, next to the other releases; returns its name. Raises
        `NotInstalled`."""
        with zipfile.ZipFile(wheel) as archive:
            (record,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            version = record.split("/")[0].removesuffix(".dist-info").partition("-")[2]
            name = release_name(version, hashlib.sha256(wheel.read_bytes()).hexdigest())
            folder = self.path / name
            if folder.is_dir():
                return name
            self.path.mkdir(parents=True, exist_ok=True, mode=0o755)
            partial = _emptied(self.path / f"{name}.partial")
            archive.extractall(partial)
        libraries = self._libraries_for(partial / _PACKAGE)
        (partial / "libraries").symlink_to(Path("../..") / libraries.relative_to(self.path.parent))
        program = partial / "bin" / _PACKAGE.replace("_", "-")
        program.parent.mkdir()
        program.write_text(_PROGRAM)
        program.chmod(0o755)
        os.sync()
        partial.rename(folder)
        sync_folder(self.path)
        return name

    def prune(self, *kept: str) -> None:
        """Remove the releases that are not to be kept."""
        for folder in self.path.iterdir():
            if folder.is_dir() and not folder.is_symlink() and folder.name not in kept:
                shutil.rmtree(folder)

    def _libraries_for(self, package: Path) -> Path:
        """The folder of the packages that these locks name: the existing one, or a new one from the package index."""
        folder = self._libraries / locks_digest(package)
        if folder.is_dir():
            return folder
        self._libraries.mkdir(parents=True, exist_ok=True, mode=0o755)
        partial = _emptied(folder.with_suffix(".partial"))
        with tempfile.TemporaryDirectory() as work:
            _run([sys.executable, "-I", "-m", "venv", f"{work}/venv"])
            # Packages must have the hashes of the lock files, whatever the index offers. This includes the build
            # requirements of libvirt-python, which pip would otherwise fetch in any version.
            install = [f"{work}/venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            hashed = ["--require-hashes", "--no-deps"]
            _run([*install, *hashed, "-r", str(package / "build.lock")])
            target = ["--no-build-isolation", "--target", str(partial)]
            _run([*install, *hashed, *target, "-r", str(package / "requirements.lock")])
        partial.rename(folder)
        return folder


def locks_digest(package: Path) -> str:
    """Identifies the packages that a release needs, from its folder of code."""
    locks = b"".join((package / name).read_bytes() for name in ("build.lock", "requirements.lock"))
    return hashlib.sha256(locks).hexdigest()[:12]


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines() or [f"it ended with {error.returncode}"]
        raise NotInstalled(f"the packages that the agent needs could not be installed: {said[-1]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"the packages that the agent needs could not be installed: {error}") from error


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o755)
    return folder


if __name__ == "__main__":
    # Run as a program, this installs a host's first release, or another release by hand: releases.py DATA WHEEL
    _releases = Releases(Path(sys.argv[1]))
    try:
        _releases.switch(_releases.install(Path(sys.argv[2])))
    except NotInstalled as refused:
        sys.exit(f"svc-nodeagent: {refused}")
