"""The rate limit of a tap, each way: token buckets on traffic to the guest and on traffic from it.

To the guest, the bucket (tc tbf) is the tap's own queue. From the guest, packets are shaped on a device of the kernel's
`ifb` kind (the shaper) that belongs to the tap. They get to the shaper by nftables' `fwd`, in a chain of their own at
the tap's ingress, and come back from it as if the tap had just received them, but do not pass the hooks of its ingress
again. So the chain must come *after* the anti-spoofing chain (`PRIORITY` is greater than its priority): a frame that
the anti-spoofing chain drops is never shaped, and every frame is checked before it is shaped. tc's own redirection
would come before both and bypass the filter, which is why it is not used.

Invariants: the shaper is created first and removed last. So if there is no shaper, nothing has to be removed, unless
somebody else has removed the shaper; each function ends in the same state however often it is repeated and wherever an
earlier one was killed; a chain whose shaper no longer exists drops packets, and is created again by the next
`set_rate`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network import nft
from svc_nodeagent.hypervisor.programs import ProgramFailed, run_program, try_program

PRIORITY = -200
"""The priority of the chain that sends a tap's packets to its shaper, at the tap's ingress."""

RATES_DIFFER = 0
"""The result of `seen_rate` if a tap's limit is incomplete, or differs between the two directions. It is never a rate
that was requested."""

_BITS = 1_000_000
_BURST_SECONDS = 0.004
_LEAST_BURST_BYTES = 16_000
"""Larger than any frame: a token bucket drops frames that it can never hold."""
_QUEUE_SECONDS = 0.1
_LEAST_QUEUE_BYTES = 32_000
"""The longest queue: enough for TCP to use the whole rate, and short enough for TCP to notice the limit."""
_CHAIN = "shape"
_CLASS = Path("/sys/class/net")
_HEX_DIGITS = 11


async def set_rate(device: str, mbps: int | None) -> None:
    """Limit a tap to `mbps` megabits a second each way, counting whole frames; None removes the limit. Existing
    connections continue. Raises `HostError`; the next call completes an unfinished change."""
    if mbps is None:
        await forget_rate(device, was_set=True)
        return
    shaper = shaper_of(device)
    if not _exists(shaper):
        await _make(shaper)
        fault_point("rate.shaper")
    _silence(shaper)
    await run_program("ip", "link", "set", "dev", shaper, "up")
    buckets = [f"qdisc replace dev {each} root tbf {_bucket(mbps)}" for each in (shaper, device)]
    await run_program("tc", "-batch", "-", stdin="\n".join(buckets).encode())
    fault_point("rate.buckets")
    await _nft(*_fresh_table(device), *_chain(device, shaper))
    fault_point("rate.chain")


async def seen_rate(device: str) -> int | None:
    """The tap's limit on the host in megabits a second; None if it has no limit, `RATES_DIFFER` if the limit is
    incomplete or the directions differ."""
    shaper = shaper_of(device)
    to_guest, from_guest = await _bucket_rate(device), await _bucket_rate(shaper)
    if to_guest is None and not _exists(shaper):
        return None
    if to_guest == from_guest and to_guest is not None and await _is_sent_to(device, shaper):
        return to_guest
    return RATES_DIFFER


async def seen_rates(naming: Naming) -> dict[str, int]:
    """As `seen_rate`, for every tap of ours with any part of a limit. Runs four programs, however many taps there
    are."""
    rated = await rated_devices(naming)
    if not rated:
        return {}
    buckets = _buckets(await run_program("tc", "-json", "qdisc", "show"))
    listing: list[dict[str, Any]] = json.loads(await run_program("nft", "-j", "list", "ruleset", "netdev"))["nftables"]
    found = {}
    for device in rated:
        shaper = shaper_of(device)
        to_guest, from_guest = buckets.get(device), buckets.get(shaper)
        is_whole = to_guest is not None and to_guest == from_guest and _sends(listing, device, shaper)
        found[device] = to_guest if is_whole and to_guest is not None else RATES_DIFFER
    return found


async def forget_rate(device: str, *, was_set: bool = False) -> None:
    """Remove every part of this tap's limit from the host, even if the tap itself has gone; with `was_set` even if
    somebody else removed its shaper."""
    shaper = shaper_of(device)
    if not was_set and not _exists(shaper):
        return
    await _nft(*_fresh_table(device)[:2])
    fault_point("rate.unchained")
    if await _bucket_rate(device) is not None:
        await _unless_gone(device, "tc", "qdisc", "del", "dev", device, "root")
    fault_point("rate.unbucketed")
    if _exists(shaper):
        await _unless_gone(shaper, "ip", "link", "del", "dev", shaper)


async def rated_devices(naming: Naming) -> frozenset[str]:
    """The devices of our taps, existing or not, for which the host has any part of a limit."""
    prefix = _shaper_prefix(naming.device_prefix)
    links = json.loads(await run_program("ip", "-json", "link", "show", "type", "ifb") or b"[]")
    names = [str(link.get("ifname", "")) for link in links]
    digits = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    shaped = {f"{naming.device_prefix}{int(each, 36):0{_HEX_DIGITS}x}" for each in digits if _is_number(each)}
    tables = await nft.list_tables()
    return frozenset(shaped | {name for family, name in tables if family == "netdev" and naming.is_tap(name)})


async def rates_lack() -> str | None:
    """Why this host cannot limit a tap, in a sentence; None if it can. Each part is tried in a network namespace that
    ends with the program, so nothing needs to be removed."""
    rules = json.dumps({"nftables": [*_fresh_table("lo"), *_chain("lo", "lo")]}).encode()
    tries: tuple[tuple[str, tuple[str, ...], bytes | None], ...] = (
        ("ifb devices, on which a guest's sending is shaped", ("ip", "link", "add", "probe", "type", "ifb"), None),
        ("token buckets (sch_tbf)", ("tc", "qdisc", "add", "dev", "lo", "root", "tbf", *_bucket(1).split()), None),
        ("nftables' forwarding at ingress (nft_fwd_netdev)", ("nft", "-j", "-f", "-"), rules),
    )
    for what, program, text in tries:
        try:
            status, _, error = await try_program("unshare", "--net", *program, stdin=text)
        except HostError as failure:
            return failure.message
        if status != 0:
            return f"The kernel or its tools lack {what}: {' '.join(error.split())}"
    return None


def shaper_of(device: str) -> str:
    """The name of a tap's shaper: the tap's own digits in a shorter form, preceded by a character that no tap's name
    starts with. Raises `ValueError` for a device that is not named as `Naming.tap` names one."""
    prefix, digits = device[:-_HEX_DIGITS], device[-_HEX_DIGITS:]
    number = int(digits, 16)
    if not prefix or len(digits) != _HEX_DIGITS:
        raise ValueError(f"{device} is not the name of a tap")
    written = ""
    while number:
        number, digit = divmod(number, 36)
        written = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + written
    return _shaper_prefix(prefix) + written.rjust(9, "0")


def _shaper_prefix(device_prefix: str) -> str:
    return f"_{device_prefix}"


def _is_number(digits: str) -> bool:
    """Whether this is a number of nine digits in base 36, as many as 44 bits need. After another prefix there would be
    a different number of characters."""
    return len(digits) == 9 and digits.isascii() and digits.isalnum() and int(digits, 36) < 16**_HEX_DIGITS


def _bucket(mbps: int) -> str:
    """tc's arguments for one bucket. A bucket splits the long packets of offloading NICs into packets that it can
    hold."""
    bytes_a_second = mbps * _BITS // 8
    burst = max(_LEAST_BURST_BYTES, int(bytes_a_second * _BURST_SECONDS))
    limit = burst + max(_LEAST_QUEUE_BYTES, int(bytes_a_second * _QUEUE_SECONDS))
    return f"rate {mbps}mbit burst {burst} limit {limit}"


def _silence(shaper: str) -> None:
    """Disable the host's own IPv6 on the device."""
    settings = Path(f"/proc/sys/net/ipv6/conf/{shaper}/disable_ipv6")
    if settings.exists():  # a kernel without IPv6 has no such settings
        settings.write_text("1")


async def _make(shaper: str) -> None:
    try:
        await run_program("ip", "link", "add", shaper, "type", "ifb")
    except ProgramFailed:
        if not _exists(shaper):
            raise


async def _bucket_rate(device: str) -> int | None:
    """The rate of the device's token bucket, in megabits a second; None without a bucket, or without the device."""
    status, output, error = await try_program("tc", "-json", "qdisc", "show", "dev", device, "root")
    if status != 0:
        if _exists(device):
            raise ProgramFailed("tc", status, error)
        return None
    return _buckets(output, device).get(device)


def _buckets(listing: bytes, asked: str = "") -> dict[str, int]:
    """Megabits a second of the token buckets that tc lists, by device; tc does not name a single device that was
    requested."""
    return {
        queue.get("dev", asked): int(queue["options"]["rate"]) * 8 // _BITS
        for queue in json.loads(listing or b"[]")
        if queue.get("kind") == "tbf" and queue.get("root")
    }


async def _is_sent_to(device: str, shaper: str) -> bool:
    """Whether packets that the tap receives go to this shaper. A shaper that was removed and created again has another
    interface number, while the chain still refers to the old number."""
    status, output, _ = await try_program("nft", "-j", "list", "chain", "netdev", device, _CHAIN)
    if status != 0:
        return False
    return _sends(json.loads(output)["nftables"], device, shaper)


def _sends(listing: Iterable[Mapping[str, Any]], device: str, shaper: str) -> bool:
    rules = (entry["rule"] for entry in listing if entry.get("rule", {}).get("table") == device)
    return any(expression.get("fwd", {}).get("dev") == shaper for rule in rules for expression in rule["expr"])


async def _nft(*commands: dict[str, Any]) -> None:
    await run_program("nft", "-j", "-f", "-", stdin=json.dumps({"nftables": commands}).encode())


def _fresh_table(device: str) -> list[dict[str, Any]]:
    """Add, delete and add the table. The first two commands remove it, whether it existed or not: a deletion requires
    that it exists."""
    table = {"table": {"family": "netdev", "name": device}}
    return [{"add": table}, {"delete": table}, {"add": table}]


def _chain(device: str, shaper: str) -> list[dict[str, Any]]:
    where = {"family": "netdev", "table": device}
    hook = {"type": "filter", "hook": "ingress", "dev": device, "prio": PRIORITY, "policy": "accept"}
    return [
        {"add": {"chain": {**where, "name": _CHAIN, **hook}}},
        {"add": {"rule": {**where, "chain": _CHAIN, "expr": [{"fwd": {"dev": shaper}}]}}},
    ]


async def _unless_gone(device: str, *arguments: str) -> None:
    """Run a command that removes something of a device. It is no failure if the device has vanished meanwhile."""
    try:
        await run_program(*arguments)
    except ProgramFailed:
        if _exists(device):
            raise


def _exists(device: str) -> bool:
    return (_CLASS / device).exists()
