"""How the code of an application is built: which programs are run in its folder, one after the other.

Invariant: what is run is a program of the server's with arguments from here. What an owner says is the name of a script
in their own package.json, and what comes of it runs as their account, as everything of their code does.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final

from uv import find_uv_bin

SCRIPT: Final = r"[A-Za-z0-9][A-Za-z0-9:._-]*"
"""A script in package.json: no option of npm's."""
_PYTHON: Final = "/usr/bin/python3"
_NPM: Final = "/usr/bin/npm"


class Build(StrEnum):
    """What is done with the code before it is started. PIP: what requirements.txt names is installed into `venv/`.
    UV: what uv.lock names, likewise. NPM: what package-lock.json names into `node_modules/`, and a script of
    package.json is run if one is named."""

    NONE = "none"
    PIP = "pip"
    UV = "uv"
    NPM = "npm"

    @property
    def program(self) -> Path | None:
        """Which the server has, or not."""
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
        """Of the panel's own files: they may lie where sites see nothing."""
        return (_uv(),) if self is Build.UV else ()


def build_commands(build: Build, script: str | None, folder: Path) -> tuple[tuple[str, ...], ...]:
    """`folder`: that of the application. `script` fits `SCRIPT`, and is npm's."""
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
    """Of these commands, beside that of every program of the site. What npm and uv keep of packages is the site's
    alone, and lies where backups leave it out; npm asks nobody for anything but packages, and uv for no Python."""
    npm = {"cache": str(home / "tmp" / "npm"), "logs_max": "0", "progress": "false"}
    npm |= dict.fromkeys(("audit", "fund", "update_notifier"), "false")
    uv = {"cache_dir": str(home / "tmp" / "uv"), "project_environment": str(folder / "venv"), "no_progress": "1"}
    # What the server trusts, as pip and npm do; and files that are the application's alone, whatever becomes of those
    # that uv keeps.
    uv |= {"python_downloads": "never", "link_mode": "copy", "system_certs": "1"}
    given = {f"npm_config_{name}": value for name, value in npm.items()}
    return given | {f"UV_{name.upper()}": value for name, value in uv.items()}


def _uv() -> Path:
    """One of the panel's own packages: Debian has none."""
    return Path(find_uv_bin())
