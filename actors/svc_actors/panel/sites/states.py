"""The statuses of a site and every move between them. Nothing else decides a status.

Theory of operation. A site has one status in the record. Two kinds of event move it:

1. *Orders*: what a caller wants. An order is accepted only if the table has a move for it.
2. *Ends*: how the server's work for an order ended. `creating` and `deleting` are the statuses of unfinished work; a
   core that starts continues both, as all of their steps may be repeated.

A suspension changes the status at once: the record says what visitors get, and the web server is changed afterwards,
repeatedly until it has taken the change.

`failed` means that the creation or the deletion stopped half-way, always with `reason`. Creating it again continues
where it stopped; deleting it removes what is there.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class SiteType(StrEnum):
    """What serves a site. It is chosen once: a site never changes its type."""

    STATIC = "static"
    PHP = "php"
    WORDPRESS = "wordpress"
    APP = "app"
    PROXY = "proxy"


class SiteStatus(StrEnum):
    CREATING = "creating"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    DELETING = "deleting"
    FAILED = "failed"


class SuspendedBy(StrEnum):
    OWNER = "owner"
    ADMINISTRATOR = "administrator"
    """Suspended by an administrator: only an administrator may end this suspension."""
    ACCOUNT = "account"
    """Suspended together with the site's account, and restored with it."""


class SiteOrder(StrEnum):
    CREATE = "create"
    """Create the site; repeated after a failure."""
    SUSPEND = "suspend"
    UNSUSPEND = "unsuspend"
    DELETE = "delete"


class SiteEnd(StrEnum):
    SERVED = "served"
    """The site has everything that it needs, and the web server serves it."""
    BROKEN = "broken"
    """A step has failed; the reason is kept."""


SiteMove = SiteOrder | SiteEnd

_S = SiteStatus

MOVES: Final[dict[SiteStatus, dict[SiteMove, SiteStatus]]] = {
    _S.CREATING: {
        SiteEnd.SERVED: _S.ACTIVE,
        SiteEnd.BROKEN: _S.FAILED,
    },
    _S.ACTIVE: {
        SiteOrder.SUSPEND: _S.SUSPENDED,
        SiteOrder.DELETE: _S.DELETING,
    },
    _S.SUSPENDED: {
        SiteOrder.UNSUSPEND: _S.ACTIVE,
        SiteOrder.DELETE: _S.DELETING,
    },
    _S.DELETING: {
        SiteEnd.BROKEN: _S.FAILED,
    },
    _S.FAILED: {
        SiteOrder.CREATE: _S.CREATING,
        SiteOrder.DELETE: _S.DELETING,
    },
}
"""Nothing leads out of `deleting`: the last step of a deletion removes the record."""


class IllegalTransition(Exception):  # noqa: N818 - named for what it says
    """There is no such move; the site keeps its status."""

    def __init__(self, status: SiteStatus, move: SiteMove) -> None:
        super().__init__(f"{move.value} has no move from {status.value}")


def move(status: SiteStatus, by: SiteMove) -> SiteStatus:
    """The status after the move `by`. Raises `IllegalTransition`."""
    try:
        return MOVES[status][by]
    except KeyError:
        raise IllegalTransition(status, by) from None


def diagram() -> str:
    """The table as a mermaid state diagram; docs/sites.md holds exactly this."""
    lines = ["stateDiagram-v2", "    [*] --> creating"]
    for status, moves in MOVES.items():
        lines += [f"    {status.value} --> {target.value}: {by.value}" for by, target in moves.items()]
    return "\n".join([*lines, "    deleting --> [*]: removed"])
