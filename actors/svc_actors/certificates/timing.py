"""When a certificate is renewed, and how long to wait after a failed attempt."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Final

from svc_actors.acme import AcmeError, AuthorityAway
from svc_actors.certificates.left_out import LONGEST_RETRY_AFTER

FIRST_PAUSE: Final = timedelta(minutes=5)
"""After a first failure; Let's Encrypt accepts five failed validations of a name in an hour."""
FIRST_PAUSE_AWAY: Final = timedelta(seconds=30)
"""After a first failure to reach the authority, which costs it nothing."""
LONGEST_PAUSE: Final = timedelta(hours=6)
SHORTEST_PAUSE: Final = timedelta(seconds=1)
RENEWED_WITH_LEFT: Final = 1 / 3 + 1 / 30
"""The part of a lifetime that is left when renewals start (`renewal_of`)."""


def renewal_of(not_before: datetime, not_after: datetime) -> datetime:
    """When a third of the lifetime is left, or up to a thirtieth of it sooner: authorities ask clients to spread their
    renewals (RFC 9773, section 4.2, for clients without another hint)."""
    lifetime = not_after - not_before
    return not_after - lifetime / 3 - lifetime / 30 * random.random()  # noqa: S311


def pause_after(failures: int, error: AcmeError, left: timedelta | None) -> timedelta:
    """How long to wait after this many failures in a row. `left`: the remaining lifetime of the current certificate."""
    first = FIRST_PAUSE_AWAY if isinstance(error, AuthorityAway) else FIRST_PAUSE
    pause: timedelta = min(first * 2 ** min(failures - 1, 20), LONGEST_PAUSE) * random.uniform(0.75, 1.0)  # noqa: S311
    if left is not None and left > timedelta():
        # Short enough for at least ten more attempts before the certificate expires, whether its lifetime is 90 days or
        # six.
        pause = min(pause, max(left / 10, SHORTEST_PAUSE))
    if error.retry_after is not None:
        pause = max(pause, min(timedelta(seconds=error.retry_after), LONGEST_RETRY_AFTER))
    return pause
