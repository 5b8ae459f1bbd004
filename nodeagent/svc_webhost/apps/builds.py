"""Builds of applications: the programs that run in an application's folder, one after the other.

Invariant: each is a program of the server's with arguments from here. An owner chooses only the name of a script in
their own package.json, which runs as their account, like the rest of their code.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final

from uv import find_uv_bin

SCRIPT: Final = r"[A-Za-z0-9][A-Za-z0-9:._-]*"
"""The name of a script in package.json. It cannot be mistaken for an option of npm."""
_PYTHON: Final = "/usr/bin/python3"
_NPM: Final = "/usr/bin/npm"


class Build(StrEnum):
    """Preparation of the code before its start. PIP: installs requirements.txt into `venv/`. UV: installs uv.lock,
    likewise. NPM: installs package-lock.json into `node_modules/`, and runs a script of package.json if one is
    named."""

    NONE = "none"
    PIP = "pip"
    UV = "uv"
    NPM = "npm"

    @property
    def program(self) -> Path | None:
        """The program that the build needs, which the server may not have."""
        match self:
            case Build.NONE:
                return None
            case Build.PIP:
                return Path(_PYTHON)
            case Build.UV:
                return _uv()
            case Build.NPM:
                return Path(_NPM)

    @property
    def shown(self) -> tuple[Path, ...]:
        """Files of the panel's own that the build needs: sites may not see their folder."""
        return (_uv(),) if self is Build.UV else ()


def build_commands(build: Build, script: str | None, folder: Path) -> tuple[tuple[str, ...], ...]:
    """`folder`: the application's. `script` matches `SCRIPT`, and is for npm only."""
    if build is Build.NPM:
        return ((_NPM, "ci"), *(((_NPM, "run", script),) if script is not None else ()))
    if build is Build.PIP:
        venv = folder / "venv"
        install = ("-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-cache-dir")
        wanted = ("--requirement", "requirements.txt")
        return ((_PYTHON, "-m", "venv", str(venv)), (str(venv / "bin" / "python3"), *install, *wanted))
    if build is Build.UV:
        return ((str(_uv()), "sync", "--locked", "--no-dev", "--python", _PYTHON),)
    return ()


def build_environment(home: Path, folder: Path) -> dict[str, str]:
    """Environment of these commands, in addition to that of every program of the site. The caches of npm and uv are the
    site's alone, in a folder that backups leave out; npm contacts nobody except for packages, and uv downloads no
    Python."""
    npm = {"cache": str(home / "tmp" / "npm"), "logs_max": "0", "progress": "false"}
    npm |= dict.fromkeys(("audit", "fund", "update_notifier"), "false")
    uv = {"cache_dir": str(home / "tmp" / "uv"), "project_environment": str(folder / "venv"), "no_progress": "1"}
    # uv trusts the server's certificate authorities, as pip and npm do. It copies files out of its cache instead of
    # linking them, so that the application does not lose them with the cache.
    uv |= {"python_downloads": "never", "link_mode": "copy", "system_certs": "1"}
    given = {f"npm_config_{name}": value for name, value in npm.items()}
    return given | {f"UV_{name.upper()}": value for name, value in uv.items()}


def _uv() -> Path:
    """The path of uv. It is one of the panel's own packages, since Debian does not have it."""
    return Path(find_uv_bin())
