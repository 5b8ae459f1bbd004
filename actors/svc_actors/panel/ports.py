"""Watches the panel's own TCP ports: an alert for each port and address family on which no process of the panel
listens.

The watch repairs nothing: the launcher, systemd and the loops of nginx and SFTP bind again at least every half minute,
until they can. Invariant: one alert per port and family, open while the panel does not have that port.

Why: docs/decisions/0005-listeners-and-held-ports.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import trio

from svc_actors.alerts import Severity, close_alerts, raise_alert
from svc_actors.store import Database, Transaction
from svc_common.listening import NAMES, Listener, families
from svc_webhost.accounts import FIRST_UID

ROUND_SECONDS: Final = 30.0
_ALERTS: Final = "port:"

Look = Callable[[], Mapping[Listener, frozenset[int]]]


class PortWatch:
    """`ports`: for each port, what it is for."""

    def __init__(self, database: Database, ports: Mapping[int, str], look: Look) -> None:
        self._database = database
        self._ports = ports
        self._look = look

    async def round(self) -> None:
        """Raises what the database raises."""
        users = await trio.to_thread.run_sync(self._look)
        lost = {
            f"{_ALERTS}{port}:{NAMES[family]}": message
            for port, purpose in self._ports.items()
            for family in families()
            if (message := _problem(Listener(family, port), purpose, users)) is not None
        }
        await self._database.transact(partial(_tell, lost=lost))


def _problem(listener: Listener, purpose: str, users: Mapping[Listener, frozenset[int]]) -> str | None:
    where, here = f"Port {listener.port} ({purpose}) on {NAMES[listener.family]}", users.get(listener, frozenset())
    tenants = sorted(user - FIRST_UID for user in here if user >= FIRST_UID)
    if tenants:
        of = ", ".join(f"s{number}" for number in tenants)
        return f"{where} is used by a program of {of}. Suspend that site; the port is then taken back."
    if not here:
        return f"{where} is not bound, so any program can take it. It is bound again as soon as possible."
    return None


async def _tell(tx: Transaction, *, lost: Mapping[str, str]) -> None:
    await close_alerts(tx, _ALERTS, keep=list(lost))
    for key, message in lost.items():
        await raise_alert(tx, key, message, severity=Severity.CRITICAL)
