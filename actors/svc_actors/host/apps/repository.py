"""Code from a git repository: what git is told, so that it fetches one commit and does nothing else.

Invariants:
- git connects to one of the addresses that were vetted, over HTTPS and without redirects, whatever the name of the host
  leads to by then. The name is what its certificate is compared with;
- no configuration is read but what is said here, no credentials are asked for, no hook and no filter is run, and no
  submodule is fetched;
- what was sent is checked as it is unpacked (`fsckObjects`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from svc_actors.outbound import AddressRefused, Outbound

URL: Final = r"https://[A-Za-z0-9.-]+(?::[0-9]{1,5})?/[A-Za-z0-9._~+/-]+"
"""Without credentials: what a repository is called is shown and kept."""
REF: Final = r"[A-Za-z0-9](?:[A-Za-z0-9_/-]|\.(?!\.|/|lock(?:/|$)))*"
"""A branch, a tag or a commit (git-check-ref-format(1)): no option, and not two names."""
_GIT: Final = "/usr/bin/git"
_PORT: Final = 443
_STALLED_SECONDS: Final = 30
_STALLED_BYTES: Final = 1000
"""A second: below that for so long, the server counts as one that does not answer."""


class RepositoryRefused(Exception):  # noqa: N818 - named for what it says
    """The server is where we do not go, or there is none of that name."""


@dataclass(frozen=True)
class Repository:
    """`url` fits `URL`, `ref` fits `REF`. `authorities`: of servers' certificates, by default the system's."""

    url: str
    ref: str
    authorities: Path | None = None

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
        return (
            (*git, "init", "--quiet", "--template="),
            (*git, "fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--depth=1", self.url, self.ref),
            (*git, "checkout", "--quiet", "--detach", "FETCH_HEAD"),
            (*git, "rev-parse", "FETCH_HEAD"),
        )

    def environment(self, addresses: Sequence[str]) -> dict[str, str]:
        """Of these commands, beside that of every program of the site."""
        host, port = self._server
        literal = ",".join(f"[{address}]" if ":" in address else address for address in addresses)
        settings = {
            "protocol.allow": "never",
            "protocol.https.allow": "always",
            "http.followRedirects": "false",
            "http.curloptResolve": f"{host}:{port}:{literal}",
            "http.lowSpeedLimit": str(_STALLED_BYTES),
            "http.lowSpeedTime": str(_STALLED_SECONDS),
            "http.proxy": "",
            "credential.helper": "",
            "fetch.fsckObjects": "true",
            "core.hooksPath": "/dev/null",
            "submodule.recurse": "false",
            "gc.auto": "0",
        }
        if self.authorities is not None:
            settings["http.sslCAInfo"] = str(self.authorities)
        numbered = enumerate(settings.items())
        return {
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CONFIG_COUNT": str(len(settings)),
            **{name: text for at, pair in numbered for name, text in _setting(at, *pair).items()},
        }

    @property
    def _server(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None, "URL has a host"
        return parts.hostname, parts.port or _PORT


def _setting(position: int, name: str, value: str) -> dict[str, str]:
    return {f"GIT_CONFIG_KEY_{position}": name, f"GIT_CONFIG_VALUE_{position}": value}


def is_commit(text: str) -> bool:
    """The name of a commit by SHA-1 or SHA-256."""
    return re.fullmatch(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", text) is not None
