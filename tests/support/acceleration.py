"""What agents that begin with an empty folder know of this machine's /dev/kvm.

Each would find out by itself, which takes five seconds where a guest never boots under KVM. Found out once a boot: an
agent that is given this compares it with the device and the host's boot, and finds out anew where they are others.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Final

import trio

from svc_nodeagent.durable import write_whole
from svc_nodeagent.hypervisor.acceleration import Acceleration

_KNOWN: Final = Path("/run/svc-tests/accelerator.json")
"""Of a test on a host of its own in that host's /run, as it has a device of its own."""


async def tell_of_kvm(folder: Path) -> None:
    """`folder`: where an agent has its machines."""

    def tell() -> None:
        _KNOWN.parent.mkdir(mode=0o755, exist_ok=True)
        # Hosts that start at once find out one after the other, those of other processes too.
        with _KNOWN.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            trio.from_thread.run(Acceleration(_KNOWN).verdict)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "accelerator.json", _KNOWN.read_bytes(), mode=0o644)

    await trio.to_thread.run_sync(tell)
