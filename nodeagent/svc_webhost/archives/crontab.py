"""Converts crontab lines to typed tasks: a script of the site with its interpreter, or a path of the site's URL.

Command lines are not supported: a line that does more (pipes, variables, further commands) is left out, with the
reason. A task's output is kept with its runs, so redirections can be dropped without loss.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from svc_webhost.archives.model import Account, FoundSite, FoundTask, Kind
from svc_webhost.archives.placing import placed_at

_MACROS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_REDIRECTION: Final = re.compile(r"(?<!\s)\s*(?:(?<![0-9])[0-9]*|&)>>?\s*(?:&[0-9]|/dev/null|\S+)")
"""The match is anchored at the first blank or digit, because trying every blank or digit in turn would take quadratic
time."""
_LONGEST: Final = 1000
"""The most characters of a command: shlex processes them one by one."""
_PHP: Final = re.compile(r"(?:.*/)?(?:ea-|alt-|lsphp)?php(?:-cli)?[0-9.]*(?:-cli)?")
_PYTHON: Final = re.compile(r"(?:.*/)?python[0-9.]*")
_FETCHERS: Final = re.compile(r"(?:.*/)?(?:wget|curl|lynx|fetch|GET)")
_VARIABLE: Final = re.compile(r"\s*[A-Za-z_][A-Za-z0-9_]*\s*=")
_USUAL: Final = frozenset({"SHELL=/bin/bash", "SHELL=/bin/sh", "SHELL=/usr/local/cpanel/bin/jailshell"})
"""Variables that control panels write into each crontab."""
_HARMLESS: Final = frozenset({"-q", "-f", "--"})
_MOST_ARGUMENTS: Final = 32


class NoTaskError(ValueError):
    """The line is not a supported task; the message says why."""


@dataclass(frozen=True)
class Task:
    """`path` is a file below the site's folder, or a path of its URL."""

    domain: str
    kind: str
    path: str
    args: tuple[str, ...]
    cron: str


def read_into(account: Account, text: str) -> None:
    """Add the tasks of a crontab to the account, and name the variables that its commands had."""
    for line in text.splitlines():
        found = _VARIABLE.match(line)
        value = line[found.end() :].strip().strip("\"'") if found is not None else ""
        if found is None or not value:
            continue
        name = f"{line[: found.end() - 1].strip()}={value}"
        if name.startswith("MAILTO="):
            account.leave(Kind.TASK, name, "a task's output is kept with its runs, and sent to nobody")
        elif name not in _USUAL:
            account.leave(Kind.TASK, name, "a task has no variables: its script must set what it needs")
    account.tasks += read_crontab(text)


def read_crontab(text: str) -> Iterator[FoundTask]:
    """The tasks of a crontab, without variables and comments."""
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#") or _VARIABLE.match(line):
            continue
        words = line.split(None, 1)
        if line.startswith("@"):
            yield FoundTask(_MACROS.get(words[0].lower(), words[0]), words[1] if len(words) > 1 else "")
            continue
        fields = line.split(None, 5)
        if len(fields) == 6:
            yield FoundTask(" ".join(fields[:5]), fields[5])
        else:
            yield FoundTask("", line)


def typed(task: FoundTask, sites: Sequence[FoundSite]) -> Task:
    """The task that the line stands for. Raises `NoTaskError`."""
    if len(task.cron.split()) != 5:
        raise NoTaskError("its times are none of five fields" if task.cron else "it has no times")
    if len(task.command) > _LONGEST:
        raise NoTaskError(f"it has more than {_LONGEST:,} characters")
    command = _REDIRECTION.sub("", task.command).strip()
    folder, command = _folder(command)
    if re.search(r"[|;&`<>]|\$\(|\$\{?[A-Za-z]", command):
        raise NoTaskError("it is more than one script with arguments")
    try:
        words = shlex.split(command)
    except ValueError:
        raise NoTaskError("its quotes do not match") from None
    if not words:
        raise NoTaskError("it has no command")
    program, rest = words[0], words[1:]
    if _FETCHERS.fullmatch(program):
        return _fetched(task, rest, sites)
    kind = "php" if _PHP.fullmatch(program) else "python" if _PYTHON.fullmatch(program) else None
    if kind is None:
        raise NoTaskError(f"{program[:60]} is neither PHP, Python nor an address of the site")
    while rest and rest[0] in _HARMLESS:
        rest.pop(0)
    if not rest or rest[0].startswith("-"):
        raise NoTaskError("it gives the interpreter options, and a task has none")
    if len(rest) > _MOST_ARGUMENTS:
        raise NoTaskError("it has too many arguments")
    domain, path = _script(rest[0], folder, sites)
    return Task(domain, kind, path, tuple(rest[1:]), task.cron)


def _folder(command: str) -> tuple[str | None, str]:
    """Splits `cd FOLDER && ...`."""
    found = re.fullmatch(r"cd\s+(\S+)\s*(?:&&|;)\s*(.*)", command, re.DOTALL)
    return (None, command) if found is None else (found[1].strip("'\""), found[2])


def _fetched(task: FoundTask, words: Iterable[str], sites: Sequence[FoundSite]) -> Task:
    address = next((word for word in words if word.startswith(("http://", "https://"))), None)
    if address is None:
        raise NoTaskError("it names no address")
    parts = urlsplit(address)
    site = next((site for site in sites if parts.hostname in (site.domain, *site.aliases)), None)
    if site is None:
        raise NoTaskError("it asks for an address of another host")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Task(site.domain, "url", path, (), task.cron)


def _script(script: str, folder: str | None, sites: Sequence[FoundSite]) -> tuple[str, str]:
    """The site that has the script, and the script's place there."""
    for site in sorted(sites, key=lambda site: -len(site.root)):
        home = (site.old_home or "").rstrip("/")
        absolute = script
        if not script.startswith(("/", "~")) and folder is not None:
            absolute = f"{folder.rstrip('/')}/{script}"
        for prefix in (f"{home}/" if home else None, "~/", "$HOME/"):
            if prefix is not None and absolute.startswith(prefix):
                absolute = absolute[len(prefix) :]
                break
        else:
            if absolute.startswith("/"):
                continue
        placed = placed_at(site, posixpath.normpath(f"{site.home_in_archive}/{absolute}").lstrip("/"))
        if placed is not None:
            return site.domain, placed
    raise NoTaskError("its script is none of the files that are imported")
