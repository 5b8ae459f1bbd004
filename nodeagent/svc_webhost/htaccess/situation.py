"""What is known about the site whose .htaccess file is judged, and about the place of the file in it.

All of it is given: the judge reads no file and asks no database, so that it can run in the confined helper. A fact that
is not known (None) makes lines block that depend on it, and never pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Final

from svc_webhost.apache.passwords import PasswordFile
from svc_webhost.htaccess.verdicts import Fronted, Redirected

TOP = PurePosixPath(".")
INDEXES: Final = ("index.php", "index.html", "index.htm")
"""The index pages that nginx looks for, in this order."""


@dataclass(frozen=True)
class Situation:
    """`folder`: the file's folder, relative to the document root; None if it lies outside. `php`: the site runs PHP;
    `wordpress`: the site is a WordPress. `denied`: its denied patterns. `protected`: its protected paths, each with its
    logins. `passwords`: those that came with an import for this folder, or the reason why there are none; None: no
    import.
    `around`: a link of the site that gives the folder, or something in it, a second address. A denied or protected path
    does not hold there.
    `fallback_page`: the path of the page that answers for paths without a file; None: none, or index.php if it has PHP.
    `utf8_pages`: files of HTML are sent as UTF-8.
    `domain`: the primary name. `names`: the others, each with whether it is redirected to the primary one.
    `fronts`: its front controllers. `settings`: the settings of the site's PHP. `indexes`: the index pages that each
    folder has; None: not known."""

    folder: PurePosixPath | None
    php: bool
    wordpress: bool
    force_https: bool
    redirects: tuple[Redirected, ...] = ()
    fronts: frozenset[Fronted] = frozenset()
    denied: frozenset[str] = frozenset()
    protected: Mapping[str, frozenset[str]] = field(default_factory=dict)
    passwords: PasswordFile | str | None = None
    around: str | None = None
    fallback_page: str | None = None
    utf8_pages: bool = False
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
        """The URL path of the folder."""
        return "/" + "/".join(self.parts)

    @cached_property
    def within(self) -> frozenset[str]:
        """The paths of the folder and of its parents, without the top: /a and /a/b."""
        return frozenset("/" + "/".join(self.parts[:depth]) for depth in range(1, len(self.parts) + 1))

    @cached_property
    def is_denied(self) -> bool:
        # Only exact folders count: a pattern such as `*.sql` denies files, and says nothing about a folder.
        return not self.within.isdisjoint(pattern.removesuffix("/") for pattern in self.denied)

    @cached_property
    def has_one_page_at_most(self) -> bool:
        """Whether no folder from this one down has index.php and another index page; False if that is not known."""
        here = "" if self.at_top else f"{self.folder}/"
        return self.indexes is not None and not any(
            "index.php" in pages and len(pages) > 1
            for folder, pages in self.indexes.items()
            if f"{folder}/".startswith(here)
        )

    @property
    def has_one_name(self) -> bool:
        """Whether visitors see the site at its primary name only."""
        return all(self.names.values()) or self.names.keys() <= {f"www.{self.domain}"}

    @cached_property
    def logins(self) -> frozenset[str] | None:
        """The logins that may enter the folder; None: everybody may."""
        # The innermost protected path applies. All candidates are the folder or its parents, so the innermost is the
        # longest.
        around = self.protected.keys() & (self.within | {"/"})
        return self.protected[max(around, key=len)] if around else None

    def has(self, redirect: Redirected) -> bool:
        """Whether the site has the redirect. A redirect of a path with everything below it includes that of the path
        itself."""
        # The last slash of a target is ignored: /new and /new/ count as the same place.
        place = (redirect.target.rstrip("/"), redirect.status)
        exactly = (*place, redirect.below, redirect.path.rstrip("/")) in self._redirected
        return exactly or (not redirect.below and (*place, redirect.path) in self._redirected_below)

    @cached_property
    def _redirected(self) -> frozenset[tuple[str, int, bool, str]]:
        return frozenset(
            (one.target.rstrip("/"), one.status, one.below, one.path.rstrip("/")) for one in self.redirects
        )

    @cached_property
    def _redirected_below(self) -> frozenset[tuple[str, int, str]]:
        return frozenset((one.target.rstrip("/"), one.status, one.path) for one in self.redirects if one.below)
