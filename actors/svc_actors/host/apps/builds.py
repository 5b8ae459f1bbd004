"""How the code of an application is built: which programs are run in its folder, one after the other.

Invariant: what is run is a program of the server's with arguments from here. What an owner says is the name of a script
in their own package.json, and what comes of it runs as their account, as everything of their code does.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final

SCRIPT: Final = r"[A-Za-z0-9][A-Za-z0-9:._-]*"
"""A script in package.json: no option of npm's."""
_PYTHON: Final = "/usr/bin/python3"
_NPM: Final = "/usr/bin/npm"


class Build(StrEnum):
    """What is done with the code before it is started. PIP: what requirements.txt names is installed into `venv/`.
    NPM: what package-lock.json names into `node_modules/`, and a script of package.json is run if one is named."""

    NONE = "none"
    PIP = "pip"
    NPM = "npm"

    @property
    def program(self) -> Path | None:
        """Which the server has, or not."""
        return {Build.NONE: None, Build.PIP: Path(_PYTHON), Build.NPM: Path(_NPM)}[self]


def build_commands(build: Build, script: str | None, folder: Path) -> tuple[tuple[str, ...], ...]:
    """`folder`: that of the application. `script` fits `SCRIPT`, and is npm's."""
    if build is Build.NPM:
        return ((_NPM, "ci"), *(((_NPM, "run", script),) if script is not None else ()))
    if build is Build.PIP:
        venv = folder / "venv"
        install = ("-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-cache-dir")
        wanted = ("--requirement", "requirements.txt")
        return ((_PYTHON, "-m", "venv", str(venv)), (str(venv / "bin" / "python3"), *install, *wanted))
    return ()


def build_environment(home: Path) -> dict[str, str]:
    """Of these commands, beside that of every program of the site. What npm keeps of packages is the site's alone, lies
    where backups leave it out, and npm asks nobody for anything but packages."""
    settings = {"cache": str(home / "tmp" / "npm"), "logs_max": "0", "progress": "false"}
    settings |= dict.fromkeys(("audit", "fund", "update_notifier"), "false")
    return {f"npm_config_{name}": value for name, value in settings.items()}
