"""Networks by the command line: pools, security groups and allowances, by the names that people gave them."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import trio

from svc.cli.failures import Exit
from tests.cli.conftest import SEEN, House, open_house


async def test_a_pool_is_made_looked_at_and_changed_by_its_name(house: House) -> None:
    await house.ok("network", "create", "public")
    await house.ok("network", "add-pool", "public", "--name", "v6", "--cidr", "2001:db8::/48")
    made = (await house.ok("pool", "show", "v6", "-o", "json")).json
    assert (made["family"], made["total"], made["topology"]) == (6, 65536, "routed")
    await house.ok("pool", "reserve", "v6", "2001:db8:0:7::", "--note", "for the routers")
    assert "2001:db8:0:7::/64" in (await house.ok("pool", "allocations", "v6")).out
    await house.ok("network", "add-pool", "public", "--name", "v4", "--cidr", "198.51.100.0/28",
                   "--nameservers", "192.0.2.53", "--nameservers", "192.0.2.54")  # fmt: skip
    await house.ok("pool", "update", "v4", "--range-end", "198.51.100.9", "--nameservers", "none")
    changed = (await house.ok("pool", "show", "v4", "-o", "json")).json
    assert (changed["range_end"], changed["nameservers"]) == ("198.51.100.9", [])
    await house.ok("pool", "update", "v4", "--range-end", "none")
    assert (await house.ok("pool", "show", "v4", "-o", "json")).json["range_end"] != "198.51.100.9"
    listed = await house.ok("pool", "list")
    assert max(map(len, listed.lines())) <= 110


async def test_what_is_set_aside_is_listed_with_its_reason(house: House) -> None:
    await house.ok("network", "create", "public")
    await house.ok("network", "add-pool", "public", "--name", "v4", "--cidr", "198.51.100.0/28")
    without = await house.svc("pool", "reserve", "v4", "198.51.100.5")
    assert without.code == Exit.INVALID
    assert "--note" in without.err
    kept = (await house.ok("pool", "reserve", "v4", "198.51.100.5", "--note", "the printer", "-o", "json")).json
    await house.ok("pool", "block", "v4", "198.51.100.6", "--note", "on a list of spammers")
    held = (await house.ok("pool", "allocations", "v4")).out
    assert re.search(r"198\.51\.100\.5 +reserved +the printer", held)
    assert re.search(r"198\.51\.100\.6 +blocked +on a list of spammers", held)
    await house.ok("pool", "unreserve", "v4", kept["id"], "--yes")
    await house.ok("pool", "unblock", "v4", "198.51.100.6")
    held = (await house.ok("pool", "allocations", "v4")).out
    assert "198.51.100.5" not in held
    assert "198.51.100.6" not in held


async def test_forcing_an_address_free_wants_a_yes(house: House) -> None:
    await house.ok("network", "create", "public")
    await house.ok("network", "add-pool", "public", "--name", "v4", "--cidr", "198.51.100.0/28")
    order = ("pool", "force-free", "v4", "198.51.100.5", "--note", "the node is gone")
    silent = await house.svc(*order)
    assert silent.code == Exit.INVALID
    assert "--yes" in silent.err
    assert (await house.svc(*order, "--yes")).code in (Exit.CONFLICT, Exit.NOT_FOUND)  # asked, and it is not held


async def test_a_group_is_made_given_rules_and_shown(house: House) -> None:
    await house.ok("security-group", "create", "web", "--project", "default")
    await house.ok("security-group", "add-rule", "web", "ingress", "tcp", "--port-from", "80", "--port-to", "90")
    await house.ok("security-group", "add-rule", "web", "ingress", "icmp", "--family", "6", "--icmp-type", "128")
    shown = (await house.ok("security-group", "show", "web")).out
    (port,) = re.findall(r"(\S+)  ingress accept tcp 80 to 90 from anybody", shown)
    assert "ingress accept icmp IPv6 type 128 from anybody" in shown
    await house.ok("security-group", "remove-rule", "web", port, "--yes")
    assert "80 to 90" not in (await house.ok("security-group", "show", "web")).out
    wrong = await house.svc("security-group", "add-rule", "web", "ingress", "icmp", "--port-from", "80")
    assert wrong.code == Exit.INVALID
    assert "--port-from" in wrong.err


async def test_a_machine_is_put_into_groups_by_their_names(house: House) -> None:
    await house.node()
    await house.image()
    await house.machine("web-1", "--password", "--wait")
    for group in ("web", "ssh"):
        await house.ok("security-group", "create", group, "--project", "default")
    put = await house.ok("vm", "groups", "web-1", "web", "ssh", "--columns", "name", "--no-header")
    assert put.lines() == ["ssh", "web"]
    assert (await house.ok("vm", "groups", "web-1", "--columns", "name", "--no-header")).lines() == ["ssh", "web"]
    await house.ok("vm", "security-groups", "web-1", "--group", "ssh")
    assert (await house.ok("vm", "groups", "web-1", "--columns", "name", "--no-header")).lines() == ["ssh"]
    assert (await house.svc("vm", "groups", "web-1", "ssh", "--none")).code == Exit.INVALID
    assert (await house.ok("vm", "groups", "web-1", "--none", "-o", "json")).json == []
    assert (await house.svc("vm", "groups", "web-1", "nothing")).code == Exit.NOT_FOUND


async def test_a_second_address_comes_and_goes(house: House) -> None:
    await house.node()
    await house.image()
    await house.machine("web-1", "--password", "--wait")
    attached = await house.ok("vm", "attach-ip", "web-1", "-o", "json")
    second = attached.json["address"]["ip"]
    assert second in (await house.ok("vm", "networking", "web-1")).out
    silent = await house.svc("vm", "detach-ip", "web-1", second)
    assert silent.code == Exit.INVALID
    assert "--yes" in silent.err
    assert (await house.svc("vm", "detach-ip", "web-1", second, typed="n\n")).code == Exit.INVALID
    assert second in (await house.ok("vm", "networking", "web-1")).out
    detached = await house.ok("vm", "detach-ip", "web-1", second, "--yes", "-o", "json")
    states = {one["ip"]: one["state"] for nic in detached.json["nics"] for one in nic["addresses"]}
    assert states.get(second, "releasing") == "releasing"
    (primary,) = (ip for ip in states if ip != second)
    assert (await house.svc("vm", "detach-ip", "web-1", primary, "--yes")).code == Exit.CONFLICT
    capped = await house.ok("vm", "rate", "web-1", "100")
    assert "100 Mbit/s" in capped.out
    assert "no cap" in (await house.ok("vm", "rate", "web-1", "0")).out


async def test_the_metrics_count_what_hosts_have_applied(database_url: str, tmp_path: Path) -> None:
    async with open_house(database_url, tmp_path, loops=[*SEEN, "network watch"]) as house:
        await house.node()
        await house.image()
        await house.machine("web-1", "--password", "--wait")

        async def applied() -> float:
            async with httpx.AsyncClient(timeout=60) as http:
                figures = (await http.get(f"{house.operations_url}/metrics")).text
            (counted,) = re.findall(r"^svc_networks_applied_total (\S+)$", figures, re.MULTILINE)
            return float(counted)

        before = await applied()
        await house.ok("vm", "rate", "web-1", "100")
        with trio.fail_after(60):
            while await applied() != before + 1:
                await trio.sleep(0.02)


async def test_an_allowance_is_set_and_told_in_words(house: House) -> None:
    sizes = ("--vcpus", "1", "--memory-mib", "128", "--disk-gib", "1")
    await house.ok("plan", "create", "tiny", "--name", "Tiny", *sizes)
    told = await house.ok("plan", "traffic", "tiny", "--traffic-gib", "500", "--traffic-action", "report")
    assert re.search(r"^note +\S", told.out, re.MULTILINE)
    assert await allowances(house) == {"tiny": 500}
    await house.ok("plan", "traffic", "tiny", "--traffic-gib", "none")
    assert await allowances(house) == {}
    await house.ok("traffic")


async def allowances(house: House) -> dict[str, int]:
    plans = (await house.ok("plan", "list", "-o", "json")).json["items"]
    return {plan["slug"]: plan["traffic_gib"] for plan in plans if plan["traffic_gib"] is not None}
