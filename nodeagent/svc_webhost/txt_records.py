"""Looks up the public TXT records of a name, with the resolver of this host.

A name server of this host may be among those that the resolver asks, but which one is asked is decided by the
delegation, as for everybody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

import dns.asyncresolver
import dns.exception
import dns.resolver
import trio

DEADLINE: Final = 4.0
"""Seconds: people wait for the answer, and a resolver that has no answer after 4 s seldom gets one later."""

_REMEMBERED: Final = 60.0
_MOST_REMEMBERED: Final = 5_000


class TxtUnknown(Exception):  # noqa: N818 - named for what it says
    """The resolver did not answer; the message says why."""


TxtRecords = Callable[[str], Awaitable[list[str]]]
"""The texts at a name, each in one piece; none if there is none. Raises `TxtUnknown`."""


async def txt_records(name: str) -> list[str]:
    try:
        with trio.fail_after(DEADLINE):
            resolver = dns.asyncresolver.Resolver()
            resolver.lifetime = DEADLINE
            answer = await resolver.resolve(name, "TXT", search=False, raise_on_no_answer=False)
    except dns.resolver.NXDOMAIN:
        return []
    except trio.TooSlowError:
        raise TxtUnknown(f"the DNS did not answer about {name} in time") from None
    except (dns.exception.DNSException, OSError) as error:
        raise TxtUnknown(f"the DNS says nothing about {name}: {error}") from error
    return [b"".join(rdata.strings).decode(errors="replace") for rdata in answer]


class RememberedTexts:
    """Keeps answers for a minute: a page that shows them asks every few seconds."""

    def __init__(self, texts: TxtRecords) -> None:
        self._texts = texts
        self._known: OrderedDict[str, tuple[float, list[str] | TxtUnknown]] = OrderedDict()

    async def __call__(self, name: str) -> list[str]:
        at, known = self._known.get(name, (-inf, []))
        if trio.current_time() - at > _REMEMBERED:
            try:
                known = await self._texts(name)
            except TxtUnknown as error:
                known = error
            self._known[name] = (trio.current_time(), known)
            self._known.move_to_end(name)
            if len(self._known) > _MOST_REMEMBERED:
                self._known.popitem(last=False)
        if isinstance(known, TxtUnknown):
            raise TxtUnknown(str(known))
        return known
