"""Traffic of this host's guests: the counters of their taps, read regularly and before a tap is removed, into the
ledger.

Traffic is counted between guest and tap: to the guest, what it received; from the guest, what it sent, including frames
that the host then dropped (spoofed, refused by a firewall or above a rate).

Invariants: amounts are on disk before they are reported, so reported amounts never shrink; a tap is removed only after
it was read. Between two writes the ledger on disk is behind the counters. If the agent is killed then, nothing is lost
as long as the taps exist: the next agent continues from the ledger and reads the taps.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import UUID

import structlog
import trio

from svc_nodeagent.durable import write_whole
from svc_nodeagent.hypervisor.files import in_thread
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.protocol import TrafficResult
from svc_nodeagent.traffic import Ledger, TapReading

SAMPLE_SECONDS = 10.0
SAMPLES_A_WRITING = 6
_CLASS = Path("/sys/class/net")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

log = structlog.get_logger()


class HostTraffic:
    """Created by `open`."""

    def __init__(self, path: Path, naming: Naming, ledger: Ledger) -> None:
        self._path = path
        self._naming = naming
        self._ledger = ledger
        self._lock = trio.Lock()
        self._unwritten = 0

    @classmethod
    async def open(cls, path: Path, naming: Naming) -> HostTraffic:
        """Open the ledger at `path`, and take a first reading of the existing taps. An unreadable ledger is set aside
        and a new one started, under a new id."""
        traffic = cls(path, naming, await in_thread(_load, path))
        async with traffic._lock:
            await traffic._sample()
        return traffic

    async def run(self) -> None:
        """Read the counters until cancelled."""
        while True:
            await self.turn()
            await trio.sleep(SAMPLE_SECONDS)

    async def turn(self) -> None:
        """Read the counters once, and write the ledger if that is due. If it cannot be written now, the next call
        writes it."""
        async with self._lock:
            month_begins = await self._sample()
            if month_begins or self._unwritten >= SAMPLES_A_WRITING:
                await self._write_if_possible()

    async def result(self) -> TrafficResult:
        """The amounts up to now, which are on disk by then. Raises `OSError` if they cannot be written."""
        async with self._lock:
            await self._sample()
            await self._write()
            return self._ledger.result()

    async def before_removal(self, devices: Collection[str]) -> None:
        """Read these taps a last time before they are removed. Never prevents the removal: a reading that cannot be
        written now is written later, and is lost only if the agent ends before that."""
        if not devices:
            return
        async with self._lock:
            await self._sample(devices)
            await self._write_if_possible()

    async def close(self) -> None:
        """Take a last reading before the agent ends; the next agent finds later traffic at the taps."""
        async with self._lock:
            await self._sample()
            await self._write_if_possible()

    async def _sample(self, devices: Collection[str] | None = None) -> bool:
        readings = await in_thread(partial(read_taps, self._naming, devices))
        self._unwritten += 1
        return self._ledger.observe(readings, datetime.now(UTC))

    async def _write_if_possible(self) -> None:
        try:
            await self._write()
        except OSError as error:
            log.warning("ledger.not_written", error=str(error))

    async def _write(self) -> None:
        await in_thread(write_whole, self._path, self._ledger.text(), mode=0o600)
        self._unwritten = 0


def read_taps(naming: Naming, devices: Collection[str] | None = None) -> list[TapReading]:
    """The counters of the existing taps, all or these. Blocking."""
    boot = _BOOT_ID.read_text().strip()
    names = [path.name for path in _CLASS.iterdir()] if devices is None else devices
    readings = (_read(name, boot) for name in names if naming.is_tap(name))
    return [reading for reading in readings if reading is not None]


def _read(device: str, boot: str) -> TapReading | None:
    """The counters of one device; None for a device that vanished meanwhile, or that has no alias (yet)."""
    folder = _CLASS / device
    try:
        index = (folder / "ifindex").read_text().strip()
        vm_id = UUID((folder / "ifalias").read_text().strip().rpartition(" vm ")[2])
        # The tap of the host receives what the guest sends.
        sent, received = (int((folder / "statistics" / name).read_text()) for name in ("rx_bytes", "tx_bytes"))
        if (folder / "ifindex").read_text().strip() != index:
            return None
    # the tap was removed between two reads, which may also be ENODEV or EINVAL; or it has no alias
    except (OSError, ValueError):
        return None
    return TapReading(device=device, vm_id=vm_id, origin=f"{boot}/{index}", received=received, sent=sent)


def _load(path: Path) -> Ledger:
    try:
        return Ledger(path.read_bytes())
    except FileNotFoundError:
        return Ledger()
    except ValueError as error:
        aside = path.with_name(f"{path.name}.unreadable")
        path.rename(aside)
        log.error("ledger.replaced", kept=str(aside), error=str(error))
        return Ledger()
