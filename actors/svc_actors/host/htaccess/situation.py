"""What is known of the site whose file is judged, and of the place of the file in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Final

from svc_actors.host.apache.passwords import PasswordFile
from svc_actors.host.htaccess.verdicts import Redirected

TOP = PurePosixPath(".")
INDEXES: Final = ("index.php", "index.html", "index.htm")
"""What nginx looks for in a folder that is asked for, in this order."""


@dataclass(frozen=True)
class Situation:
    """`folder`: that of the file, relative to what visitors see; None where they see nothing of it. `php`: the site
    runs PHP; `wordpress`: it is one. `denied`: its denied patterns, `protected`: paths that ask for a password, each
    with its logins. `passwords`: those of the folder that came along with an import, or why none can be had; None: it
    is not being imported.
    `around`: a link of the site by which visitors come to the folder, or to what is in it, by another address; what is
    kept from them by its address is not kept from them there.
    `domain` is its primary name, `names` its others, each with whether visitors of it are sent to the primary one.
    `settings`: those of the site's PHP, by their names there. `indexes`: the pages of folders that nginx would show, by
    folder; None: not known."""

    folder: PurePosixPath | None
    php: bool
    wordpress: bool
    force_https: bool
    redirects: tuple[Redirected, ...] = ()
    denied: frozenset[str] = frozenset()
    protected: Mapping[str, frozenset[str]] = field(default_factory=dict)
    passwords: PasswordFile | str | None = None
    around: str | None = None
    domain: str = ""
    names: Mapping[str, bool] = field(default_factory=dict)
    settings: Mapping[str, Any] | None = None
    indexes: Mapping[PurePosixPath, frozenset[str]] | None = None

    @property
    def at_top(self) -> bool:
        return self.folder == TOP

    @cached_property
    def parts(self) -> tuple[str, ...]:
        return self.folder.parts if self.folder is not None else ()

    @property
    def path(self) -> str:
        """As visitors ask for the folder."""
        return "/" + "/".join(self.parts)

    @cached_property
    def within(self) -> frozenset[str]:
        """The paths of the folder and of those that it is in, below the top: /a and /a/b."""
        return frozenset("/" + "/".join(self.parts[:depth]) for depth in range(1, len(self.parts) + 1))

    @cached_property
    def is_denied(self) -> bool:
        return not self.within.isdisjoint(pattern.removesuffix("/") for pattern in self.denied)

    @cached_property
    def logins(self) -> frozenset[str] | None:
        """Who gets in at the folder, which is a matter of the innermost protected path; None: everybody."""
        around = self.protected.keys() & (self.within | {"/"})
        return self.protected[max(around, key=len)] if around else None

    def has(self, wanted: Redirected) -> bool:
        """The site has the redirect. One of all that is below does for one of the path itself."""
        place = (wanted.target.rstrip("/"), wanted.status)
        exactly = (*place, wanted.below, wanted.path.rstrip("/")) in self._redirected
        return exactly or (not wanted.below and (*place, wanted.path) in self._redirected_below)

    @cached_property
    def _redirected(self) -> frozenset[tuple[str, int, bool, str]]:
        return frozenset(
            (one.target.rstrip("/"), one.status, one.below, one.path.rstrip("/")) for one in self.redirects
        )

    @cached_property
    def _redirected_below(self) -> frozenset[tuple[str, int, str]]:
        return frozenset((one.target.rstrip("/"), one.status, one.path) for one in self.redirects if one.below)
