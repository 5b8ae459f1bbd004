"""Code from a git repository: options with which git fetches one commit and does nothing else.

Invariants:
- git connects to one of the vetted addresses, over HTTPS and without redirects, wherever the host's name points by
  then; its certificate must have the name. For SSH git makes no connection, and talks over a file descriptor that it
  gets (`confined.upload_pack`);
- git reads no configuration but the one from here, asks for no credentials, runs no hook or filter, and fetches no
  submodule;
- received data is checked while it is unpacked (`fsckObjects`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from svc_common.outbound import AddressRefused, Outbound

_HOST: Final = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?"
_NUMBER: Final = r"(?:6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"
"""The number of a port."""
_PATH: Final = r"[A-Za-z0-9._~+/-]+"
_SSH_USER: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
URL: Final = (
    rf"(?:https://{_HOST}(?::{_NUMBER})?/{_PATH}|ssh://{_SSH_USER}@{_HOST}(?::{_NUMBER})?/{_PATH}"
    rf"|{_SSH_USER}@{_HOST}:{_PATH})"
)
"""URLs of repositories. They contain no credentials, since they are shown and stored. Git hosts show the last form for
repositories that are fetched by SSH."""
REF: Final = r"[A-Za-z0-9](?:[A-Za-z0-9_/-]|\.(?!\.|/|lock(?:/|$)))*"
"""A branch, a tag or a commit (git-check-ref-format(1)). It cannot be an option, or two names."""
_GIT: Final = "/usr/bin/git"
_PYTHON: Final = "/usr/bin/python3"
_PORT: Final = 443
SSH_PORT: Final = 22
_RELAY: Final = Path(__file__).with_name("git_relay.py")
_STALLED_SECONDS: Final = 30
_STALLED_BYTES: Final = 1000
"""Bytes per second: a server that stays below this rate for the stall time counts as not answering."""


class RepositoryRefused(Exception):  # noqa: N818 - named for what it says
    """The server's address is not allowed, or the server does not exist."""


@dataclass(frozen=True)
class SshRepository:
    """`path` as an argument of git-upload-pack."""

    host: str
    port: int
    user: str
    path: str


@dataclass(frozen=True)
class Repository:
    """`url` matches `URL`, `ref` matches `REF`. `authorities`: the certificate authorities that git trusts, by default
    the system's."""

    url: str
    ref: str
    authorities: Path | None = None

    @property
    def by_ssh(self) -> SshRepository | None:
        """User, host and path, if it is fetched by SSH."""
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
        """The addresses to which git may connect. Raises `RepositoryRefused`."""
        host, port = self._server
        try:
            return await outbound.addresses(host, port)
        except AddressRefused as refused:
            raise RepositoryRefused(f"{refused}.") from refused
        except OSError as error:
            raise RepositoryRefused(f"{host} has no address: {error.strerror or error}.") from error

    def commands(self, folder: Path) -> tuple[tuple[str, ...], ...]:
        """Run in this order, they leave the files of the commit in `folder`, which must exist and be empty. The last
        one prints the commit's name."""
        git = (_GIT, "-C", str(folder))
        # With SSH, the host in this URL is used only in git's messages: the process at the other end of the descriptor
        # knows the real host.
        url = self.url if self.by_ssh is None else f"ssh://{self.by_ssh.host}/repository"
        return (
            (*git, "init", "--quiet", "--template="),
            (*git, "fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--depth=1", url, self.ref),
            (*git, "checkout", "--quiet", "--detach", "FETCH_HEAD"),
            (*git, "rev-parse", "FETCH_HEAD"),
        )

    @property
    def shown(self) -> tuple[Path, ...]:
        """Files that git must see, wherever they are."""
        return (_RELAY,) if self.authorities is None else (_RELAY, self.authorities)

    def environment(self, addresses: Sequence[str], speaks_to: int | None = None) -> dict[str, str]:
        """Environment of these commands, in addition to that of every program of the site. `speaks_to`: for SSH, a
        descriptor that is connected to the repository."""
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
    # git runs this command in a shell. The command contains no input of any user.
    relay = shlex.join([_PYTHON, "-I", "-S", str(_RELAY), str(speaks_to)])
    return {"protocol.ssh.allow": "always", "core.sshCommand": relay, "ssh.variant": "simple"}


def _settings(way: Mapping[str, str]) -> dict[str, str]:
    """The environment that gives git these settings, and the settings that apply to every repository."""
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
    """Whether the text is the name of a commit, by SHA-1 or SHA-256."""
    return re.fullmatch(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", text) is not None
