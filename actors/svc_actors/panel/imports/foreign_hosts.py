"""Other hosts from which sites are fetched by SSH: what is stored about such a host, which commands it is asked to run,
and which program connects to it.

A host is asked to run only these commands: report its PHP, list the password files that its .htaccess files name, read
those below the account's home, pack folders (tar), and dump a database (mariadb-dump or mysqldump), with the connection
settings on standard input. They run in the login shell of its account, as on every SSH server; every name in them is
quoted.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import trio
from pydantic import BaseModel, ConfigDict, Field

from svc_actors.panel.jobs import JobRun, ProgramFailed
from svc_common.errors import unavailable
from svc_common.public_keys import key_fingerprint
from svc_webhost import confined
from svc_webhost.apache.passwords import MOST_BYTES
from svc_webhost.archives.fetched import DESCRIPTION, HOME, PHP, dump_path
from svc_webhost.confined.fetch import KEY
from svc_webhost.confined_client import SiteFolder
from svc_webhost.programs import Program, memory_file, run_program

FETCH_SECONDS: Final = 4 * 3600.0
STALLED_SECONDS: Final = 120
_KEYS_SECONDS: Final = 40.0
_FETCH: Final = (sys.executable, "-I", "-S", "-X", "utf8", str(Path(confined.__file__).with_name("fetch.py")))
_KEY_TYPES: Final = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
_SAYS_ITSELF: Final = "echo PHP_EOL, json_encode([PHP_VERSION, get_loaded_extensions()]), PHP_EOL;"
_NAMES_PASSWORDS: Final = (
    f'printf "{HOME}%s\\n" "$HOME"; '
    'find "$@" -type f -name .htaccess -exec grep -ih "^[[:space:]]*AuthUserFile" {} +; true'
)
_READS_PASSWORDS: Final = f'[ -f "$1" ] && head -c {MOST_BYTES + 1} "$1"'
_DUMPED: Final = (
    "--single-transaction",
    "--quick",
    "--no-tablespaces",
    "--default-character-set=utf8mb4",
)


class Remote(BaseModel):
    """`folders`: the document root, and others that its programs need. `host_key` as in known_hosts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    port: int
    user: str
    host_key: str
    domain: str
    folders: tuple[str, ...]
    database: str | None
    database_user: str | None
    database_host: str | None


class Secrets(BaseModel):
    """The credentials for the host, sealed until the files have been fetched."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    password: str | None = Field(default=None, repr=False)
    private_key: str | None = Field(default=None, repr=False)
    database_password: str | None = Field(default=None, repr=False)


@dataclass(frozen=True)
class HostKey:
    """A host key as in known_hosts: `ssh-ed25519 AAAA...`."""

    text: str

    @property
    def type(self) -> str:
        return self.text.partition(" ")[0]

    @property
    def fingerprint(self) -> str:
        """The fingerprint in the form of `ssh-keygen -l`."""
        return key_fingerprint(self.text.partition(" ")[2])


class ForeignHosts(Protocol):
    async def keys(self, address: str, port: int, uid: int) -> Sequence[HostKey]:
        """The keys that the host shows, possibly none."""
        ...

    async def fetch(self, run: JobRun, folder: SiteFolder, order: dict[str, Any]) -> None:
        """Make `archive` in the folder. Raises `unavailable`."""
        ...


class SystemForeignHosts:
    """Uses this server's OpenSSH, in a process that can do nothing else (`svc_webhost.confined.fetch`)."""

    async def keys(self, address: str, port: int, uid: int) -> Sequence[HostKey]:
        said: list[str] = []

        async def take(lines: list[str]) -> None:
            said.extend(lines)
            del said[:-20]

        with memory_file({"uid": uid, "gid": uid, "address": address, "port": port}) as order:
            with trio.move_on_after(_KEYS_SECONDS):
                await run_program(Program(_FETCH, stdin=order), take)
        found = [HostKey(line.removeprefix(KEY)) for line in said if line.startswith(KEY)]
        known = [key for key in found if key.type in _KEY_TYPES]
        return sorted(known, key=lambda key: _KEY_TYPES.index(key.type))

    async def fetch(self, run: JobRun, folder: SiteFolder, order: dict[str, Any]) -> None:
        whole = {**order, "uid": folder.uid, "gid": folder.gid, "folder": str(folder.path)}
        with memory_file(whole) as path:
            try:
                await run.program(_FETCH, seconds=FETCH_SECONDS, stdin=path)
            except ProgramFailed as failed:
                raise unavailable(failed.last or failed.message, hint="Nothing was imported. Start again.") from failed


def order_of(remote: Remote, secrets: Secrets, address: str, most: int) -> dict[str, Any]:
    """The order for the fetching process: what to fetch, and how."""
    told = {"domain": remote.domain, "folders": remote.folders, "database": remote.database}
    dump = None
    if remote.database is not None:
        command, given = _dump(remote, remote.database, secrets.database_password)
        dump = {"entry": dump_path(remote.database), "command": command, "input": given}
    return {
        "address": address,
        "port": remote.port,
        "user": remote.user,
        "host_key": remote.host_key,
        "password": secrets.password,
        "private_key": secrets.private_key,
        "description": {"entry": DESCRIPTION, "text": json.dumps(told)},
        "asked": [{"entry": PHP, "command": shlex.join(["php", "-r", _SAYS_ITSELF])}],
        "passwords": {
            "folders": remote.folders,
            "named": shlex.join(["sh", "-c", _NAMES_PASSWORDS, "sh", *remote.folders]),
            "read": ["sh", "-c", _READS_PASSWORDS, "sh"],
        },
        "dump": dump,
        "folders": remote.folders,
        "command": shlex.join(
            ["env", "LC_ALL=C", "tar", "-C", "/", "-cf", "-", *(f".{folder}" for folder in remote.folders)]
        ),
        "most": most,
        "stalled": STALLED_SECONDS,
    }


def _dump(remote: Remote, database: str, password: str | None) -> tuple[str, str]:
    """The command that dumps a database, and its standard input. Passwords are never arguments, because everybody on
    the host could see those."""
    choose = "d=$(command -v mariadb-dump || command -v mysqldump) || { echo no mysqldump is there >&2; exit 127; }"
    arguments = shlex.join([*_DUMPED, database])
    if remote.database_user is None:
        return shlex.join(["sh", "-c", f'{choose}; exec "$d" {arguments}']), ""
    # `cat` makes /dev/stdin a pipe: the standard input that SSH servers provide cannot be opened by name everywhere.
    script = f'{choose}; cat | "$d" --defaults-extra-file=/dev/stdin {arguments}'
    settings = {"user": remote.database_user, "password": password or "", "host": remote.database_host or "localhost"}
    lines = ["[client]", *(f"{name}={_quoted(value)}" for name, value in settings.items())]
    return shlex.join(["sh", "-c", script]), "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    """The text, quoted as in MariaDB's option files."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
