"""Code from a git repository: what git is told, so that it fetches one commit and does nothing else.

Invariants:
- git connects to one of the addresses that were vetted, over HTTPS and without redirects, whatever the name of the host
  leads to by then; the name is what its certificate is compared with. Where it is SSH git connects to nothing, and
  speaks to a descriptor that it is given (`confined.upload_pack`);
- no configuration is read but what is said here, no credentials are asked for, no hook and no filter is run, and no
  submodule is fetched;
- what was sent is checked as it is unpacked (`fsckObjects`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from svc_actors.outbound import AddressRefused, Outbound

_HOST: Final = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?"
_NUMBER: Final = r"(?:6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"
"""Of a port."""
_PATH: Final = r"[A-Za-z0-9._~+/-]+"
_SSH_USER: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
URL: Final = (
    rf"(?:https://{_HOST}(?::{_NUMBER})?/{_PATH}|ssh://{_SSH_USER}@{_HOST}(?::{_NUMBER})?/{_PATH}"
    rf"|{_SSH_USER}@{_HOST}:{_PATH})"
)
"""Without credentials: what a repository is called is shown and kept. The last form is how hosts of git show those that
are fetched by SSH."""
REF: Final = r"[A-Za-z0-9](?:[A-Za-z0-9_/-]|\.(?!\.|/|lock(?:/|$)))*"
"""A branch, a tag or a commit (git-check-ref-format(1)): no option, and not two names."""
_GIT: Final = "/usr/bin/git"
_PYTHON: Final = "/usr/bin/python3"
_PORT: Final = 443
SSH_PORT: Final = 22
_RELAY: Final = Path(__file__).with_name("git_relay.py")
_STALLED_SECONDS: Final = 30
_STALLED_BYTES: Final = 1000
"""A second: below that for so long, the server counts as one that does not answer."""


class RepositoryRefused(Exception):  # noqa: N818 - named for what it says
    """The server is where we do not go, or there is none of that name."""


@dataclass(frozen=True)
class SshRepository:
    """`path` as git-upload-pack is told it."""

    host: str
    port: int
    user: str
    path: str


@dataclass(frozen=True)
class Repository:
    """`url` fits `URL`, `ref` fits `REF`. `authorities`: of servers' certificates, by default the system's."""

    url: str
    ref: str
    authorities: Path | None = None

    @property
    def by_ssh(self) -> SshRepository | None:
        """Where it is fetched by SSH: who and what is asked there."""
        if self.url.startswith("https:"):
            return None
        if self.url.startswith("ssh:"):
            parts = urlsplit(self.url)
            assert parts.hostname is not None, "URL has a host"
            path = parts.path.removeprefix("/") if parts.path.startswith("/~") else parts.path
            return SshRepository(parts.hostname, parts.port or SSH_PORT, parts.username or "", path)
        account, _, path = self.url.partition(":")
        user, _, host = account.partition("@")
        return SshRepository(host.lower(), SSH_PORT, user, path)

    async def addresses(self, outbound: Outbound) -> Sequence[str]:
        """Where git may connect to. Raises `RepositoryRefused`."""
        host, port = self._server
        try:
            return await outbound.addresses(host, port)
        except AddressRefused as refused:
            raise RepositoryRefused(f"{refused}.") from refused
        except OSError as error:
            raise RepositoryRefused(f"{host} has no address: {error.strerror or error}.") from error

    def commands(self, folder: Path) -> tuple[tuple[str, ...], ...]:
        """One after the other, they leave the files of the commit in `folder`, which is there and empty. The last one
        writes the commit's name."""
        git = (_GIT, "-C", str(folder))
        # Where it is SSH, the name is for git's messages alone: who is asked is said at the descriptor's other end.
        url = self.url if self.by_ssh is None else f"ssh://{self.by_ssh.host}/repository"
        return (
            (*git, "init", "--quiet", "--template="),
            (*git, "fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--depth=1", url, self.ref),
            (*git, "checkout", "--quiet", "--detach", "FETCH_HEAD"),
            (*git, "rev-parse", "FETCH_HEAD"),
        )

    @property
    def shown(self) -> tuple[Path, ...]:
        """What git needs to see, wherever that lies."""
        return (_RELAY,) if self.authorities is None else (_RELAY, self.authorities)

    def environment(self, addresses: Sequence[str], speaks_to: int | None = None) -> dict[str, str]:
        """Of these commands, beside that of every program of the site. `speaks_to`: the descriptor at whose other end
        the repository is, where it is fetched by SSH."""
        return _settings(self._by_https(addresses) if speaks_to is None else _by_ssh(speaks_to))

    def _by_https(self, addresses: Sequence[str]) -> dict[str, str]:
        host, port = self._server
        literal = ",".join(f"[{address}]" if ":" in address else address for address in addresses)
        settings = {
            "protocol.https.allow": "always",
            "http.followRedirects": "false",
            "http.curloptResolve": f"{host}:{port}:{literal}",
            "http.lowSpeedLimit": str(_STALLED_BYTES),
            "http.lowSpeedTime": str(_STALLED_SECONDS),
            "http.proxy": "",
        }
        if self.authorities is not None:
            settings["http.sslCAInfo"] = str(self.authorities)
        return settings

    @property
    def _server(self) -> tuple[str, int]:
        if (repository := self.by_ssh) is not None:
            return repository.host, repository.port
        parts = urlsplit(self.url)
        assert parts.hostname is not None, "URL has a host"
        return parts.hostname, parts.port or _PORT


def _by_ssh(speaks_to: int) -> dict[str, str]:
    # git has a shell run it; there is nothing of anybody's in it.
    relay = shlex.join([_PYTHON, "-I", "-S", str(_RELAY), str(speaks_to)])
    return {"protocol.ssh.allow": "always", "core.sshCommand": relay, "ssh.variant": "simple"}


def _settings(way: Mapping[str, str]) -> dict[str, str]:
    """The environment of a git that has these settings, and those of every repository."""
    settings = {
        "protocol.allow": "never",
        "credential.helper": "",
        "fetch.fsckObjects": "true",
        "core.hooksPath": "/dev/null",
        "submodule.recurse": "false",
        "gc.auto": "0",
    }
    numbered = enumerate((settings | dict(way)).items())
    return {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_COUNT": str(len(settings) + len(way)),
        **{name: text for at, pair in numbered for name, text in _setting(at, *pair).items()},
    }


def _setting(position: int, name: str, value: str) -> dict[str, str]:
    return {f"GIT_CONFIG_KEY_{position}": name, f"GIT_CONFIG_VALUE_{position}": value}


def is_commit(text: str) -> bool:
    """The name of a commit by SHA-1 or SHA-256."""
    return re.fullmatch(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", text) is not None
