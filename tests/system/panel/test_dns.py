"""The panel with a real Knot: from a call of its API to the answer of the DNS, and what the parent of a zone says."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import trio
from pydantic import TypeAdapter

from svc_actors.panel.dns.settings import DnsSettings
from svc_actors.store import Database
from svc_webhost.delegation import DelegationError, ParentServers
from svc_webhost.knot import Authority, RecordData, ResourceRecord, Zone
from tests.support.knot import RealKnot, knotc, real_knot
from tests.support.panel import open_panel, recorded_host
from tests.support.panel_sites import site_row

pytestmark = [pytest.mark.system, pytest.mark.isolated]

DATA: TypeAdapter[RecordData] = TypeAdapter(RecordData)
SETTINGS = DnsSettings(("ns1.host.test", "ns2.host.test"), addresses=(ip_address("203.0.113.5"),))


def record(owner: str, **data: Any) -> ResourceRecord:
    return ResourceRecord.of(owner, 300, DATA.validate_python(data))


async def answered(knot: RealKnot, name: str, type_: str, wanted: set[str]) -> None:
    with trio.fail_after(60):
        while await knot.answers(name, type_) != wanted:
            await trio.sleep(0.02)


async def test_a_record_over_the_api_is_answered_in_good_time_and_survives_a_purge_and_a_kill(
    panel_database: Database, tmp_path: Path
) -> None:
    seconds: list[float] = []
    async with real_knot() as knot:
        host = replace(recorded_host(), name_server=knot.server)
        async with open_panel(panel_database, tmp_path, host, dns=SETTINGS, loops=None) as panel:
            ada = await panel.person("ada@example.com")
            site = await site_row(panel.database, ada, "example.test")
            browser = panel.program(await panel.token(ada))
            await browser.post(f"/sites/{site}/dns/point")
            for number in range(10):
                began = trio.current_time()
                data = {"type": "A", "address": f"192.0.2.{number}"}
                created = await browser.post(f"/sites/{site}/dns/records", {"name": f"n{number}", "data": data})
                assert await knot.answers(f"n{number}.example.test", "A") == {f"192.0.2.{number}"}
                seconds.append(trio.current_time() - began)
                assert created.json()["zone"]["served"] is True

            knotc(knot, "-f", "zone-purge", "example.test")
            await answered(knot, "n1.example.test", "A", {"192.0.2.1"})
            await knot.kill()
            meanwhile = await browser.post(
                f"/sites/{site}/dns/records", {"name": "late", "data": {"type": "TXT", "text": 'said "late"; ü'}}
            )
            with trio.fail_after(60):
                while not (await browser.get(f"/sites/{site}/dns")).json()["zone"]["served"]:
                    await trio.sleep(0.1)
            late = await knot.answers("late.example.test", "TXT")
            pointed = await knot.answers("example.test", "A")

    seconds.sort()
    print(
        f"a record is answered {seconds[5] * 1000:.0f} ms after the call began (median), {seconds[-1] * 1000:.0f} worst"
    )
    assert seconds[5] < 0.2
    assert meanwhile.status_code == 201
    assert meanwhile.json()["zone"]["served"] is False
    assert late == {'"said \\"late\\"; \\195\\188"'}
    assert pointed == {"203.0.113.5"}


async def test_the_parent_is_asked_whom_it_delegates_to() -> None:
    """This Knot is the resolver, the parent `test` and nothing below it."""
    parent = Zone(
        "test",
        Authority(("ns.parent.test",), "hostmaster@parent.test"),
        frozenset(
            {
                record("ns.parent.test", type="A", address="127.0.0.1"),
                record("here.test", type="NS", target="ns1.host.test"),
                record("here.test", type="NS", target="NS2.host.test"),
                record("www.alias.test", type="A", address="192.0.2.1"),
            }
        ),
    )
    async with real_knot() as knot:
        await knot.server.agree(parent)
        parents = ParentServers(("127.0.0.1",), knot.server.settings.port, private=True)

        here = await parents.nameservers("here.test")
        nowhere = await parents.nameservers("nowhere.test")
        not_delegated = await parents.nameservers("alias.test")
        with pytest.raises(DelegationError, match="could not be asked"):
            await parents.nameservers("example.other")
        with pytest.raises(DelegationError, match="public"):
            await replace(parents, private=False).nameservers("here.test")
        await knot.kill()
        with pytest.raises(DelegationError):
            await parents.nameservers("here.test")

    assert here == {"ns1.host.test", "ns2.host.test"}
    assert nowhere == not_delegated == frozenset()
