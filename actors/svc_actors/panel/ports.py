"""The panel's own TCP ports: an alert for each that nobody of the panel's holds, by port and family.

What is wrong is put right elsewhere: the launcher, systemd and the loops of nginx and SFTP bind again every half
minute at most, until they can. Invariant: one alert for a port and family, open while that one is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import trio

from svc_actors.alerts import Severity, close_alerts, raise_alert
from svc_actors.host.accounts import FIRST_UID
from svc_actors.listening import NAMES, Listener, families
from svc_actors.store import Database, Transaction

ROUND_SECONDS: Final = 30.0
_ALERTS: Final = "port:"

Look = Callable[[], Mapping[Listener, frozenset[int]]]


class PortWatch:
    """`ports`: what each is for."""

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
