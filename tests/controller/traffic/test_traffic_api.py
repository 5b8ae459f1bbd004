"""Traffic over the API: who sees what, how a policy is set, and what is refused."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from svc_actors.controller.traffic.periods import next_period, period_of, shifted, start_of, utc_now
from svc_actors.controller.traffic.policy import GIB, Policy, TrafficAction
from tests.support.traffic import TrafficHarness, reading
from tests.support.traffic_api import Callers, callers, get, put, refused

SUSPEND = {"traffic_gib": 10, "traffic_direction": "both", "traffic_action": "suspend"}


@pytest.fixture
def stage(stage: TrafficHarness) -> TrafficHarness:
    """With the clock that the API goes by."""
    stage.now = utc_now()
    return stage


async def shown(people: Callers, query: str = "") -> Any:
    return await get(people.administrator, f"/traffic{query}")


async def test_usage_stands_beside_the_allowance(stage: TrafficHarness) -> None:
    plan = await stage.plan("small")
    await stage.allow(plan, Policy(10, action=TrafficAction.THROTTLE, throttle_mbps=5))
    heavy, light = await stage.machine("heavy", plan), await stage.machine("light")
    period = period_of(stage.now)
    await stage.hear(reading(heavy, 12 * GIB, GIB, period=period, samples=4, resets=1))
    await stage.enforce()
    async with callers(stage) as people:
        page = await shown(people)
        assert (page["period"], page["periods"], page["total"]) == (period, [period], 2)
        assert (page["received_bytes"], page["sent_bytes"]) == (GIB, 12 * GIB)
        first, second = page["items"]
        assert first == {
            "vm_id": str(heavy),
            "vm_name": "heavy",
            "project_id": str(stage.project_id),
            "node_id": str(stage.node_id),
            "plan": "small",
            "deleted_at": None,
            "received_bytes": GIB,
            "sent_bytes": 12 * GIB,
            "counted_bytes": 12 * GIB,
            "allowance_bytes": 10 * GIB,
            "percent": 120.0,
            "direction": "outbound",
            "action": "throttle",
            "state": "exceeded",
            "resets": 1,
            "samples": 4,
            "first_at": f"{period}-02T00:00:00Z",
        }
        assert (second["vm_id"], second["state"], second["samples"], second["first_at"], second["percent"]) == (
            str(light),
            "unlimited",
            0,
            None,
            None,
        )
        [decision] = page["decisions"]
        assert (decision["vm_name"], decision["action"], decision["throttle_mbps"]) == ("heavy", "throttle", 5)
        alone = await get(people.administrator, f"/vms/{heavy}/traffic")
        assert alone["position"]["state"] == "exceeded"
        assert (alone["position"]["percent"], alone["position"]["throttle_mbps"]) == (120.0, 5)
        assert alone["history"] == [decision]
        assert (len(alone["months"]), alone["months"][0]["sent_bytes"]) == (12, 12 * GIB)


async def test_a_customer_sees_their_own_machines_and_the_totals_of_these(stage: TrafficHarness) -> None:
    plan, period = await stage.plan(), period_of(stage.now)
    await stage.allow(plan, Policy(1, action=TrafficAction.SUSPEND))
    other: UUID = await stage.database.fetchval("INSERT INTO projects (name) VALUES ('other') RETURNING id")
    own, foreign = await stage.machine("own", plan), await stage.machine("foreign", plan, project_id=other)
    before = shifted(period, -3)
    await stage.hear(
        reading(own, 5 * GIB, 1, period=period),
        reading(foreign, 7 * GIB, 2, period=period),
        reading(foreign, 1, period=before),
    )
    await stage.enforce()
    async with callers(stage) as people:
        page = await get(people.customer, "/traffic")
        assert [item["vm_name"] for item in page["items"]] == ["own"]
        assert (page["total"], page["sent_bytes"], page["received_bytes"]) == (1, 5 * GIB, 1)
        assert [decision["vm_name"] for decision in page["decisions"]] == ["own"]
        assert (page["periods"], page["items"][0]["node_id"]) == ([period], None)
        everything = await get(people.staff, "/traffic")
        assert (everything["total"], everything["sent_bytes"], len(everything["periods"])) == (2, 12 * GIB, 4)
        nothing = await get(people.stranger, "/traffic")
        assert (nothing["total"], nothing["sent_bytes"], nothing["decisions"]) == (0, 0, [])
        for path in (f"/vms/{foreign}/traffic", f"/vms/{foreign}/bandwidth", f"/vms/{uuid4()}/traffic"):
            assert refused(await people.customer.get(path)) == "not_found"
        assert (await get(people.customer, f"/vms/{own}/bandwidth"))[0]["sent_bytes"] == 5 * GIB


async def test_the_list_is_paged_sorted_and_searched(stage: TrafficHarness) -> None:
    for number in range(5):
        await stage.sent(await stage.machine(f"vm{number}"), number)
    async with callers(stage) as people:
        first = await shown(people, "?page_size=2")
        assert ([item["vm_name"] for item in first["items"]], first["total"], first["pages"]) == (["vm4", "vm3"], 5, 3)
        last = await shown(people, "?page_size=2&page=3&sort=vm_name")
        assert [item["vm_name"] for item in last["items"]] == ["vm4"]
        searched = await shown(people, "?q=m2")
        assert ([item["vm_name"] for item in searched["items"]], searched["total"]) == (["vm2"], 1)
        for plan, gib in {"tight": 1, "wide": 100}.items():
            plan_id = await stage.plan(plan)
            await stage.allow(plan_id, Policy(gib))
            await stage.database.execute("UPDATE vms SET plan_id = $1 WHERE name = $2", plan_id, f"vm{len(plan) - 2}")
        nearest = await shown(people, "?sort=-percent&page_size=2")
        assert [(item["vm_name"], item["percent"]) for item in nearest["items"]] == [("vm3", 300.0), ("vm2", 2.0)]
        assert (await shown(people, "?q=m2"))["sent_bytes"] == 10 * GIB
        await stage.machine("other")
        assert (await shown(people, "?q=vm&page_size=2"))["total"] == 5


async def test_a_month_shows_the_machines_that_there_were(stage: TrafficHarness) -> None:
    present = period_of(stage.now)
    before = shifted(present, -2)
    old, new = await stage.machine("old"), await stage.machine("new", created_at=stage.now)
    gone, idle = await stage.machine("gone"), await stage.machine("idle")
    await stage.hear(reading(gone, 3, period=before), reading(old, 4, period=before), reading(new, 1, period=present))
    for vm_id in (gone, idle):
        await stage.database.execute("UPDATE vms SET deleted_at = now(), status = 'deleted' WHERE id = $1", vm_id)
    async with callers(stage) as people:
        past = await shown(people, f"?period={before}&sort=vm_name")
        assert [(item["vm_name"], item["deleted_at"] is None) for item in past["items"]] == [
            ("gone", False),
            ("old", True),
        ]
        assert past["sent_bytes"] == 7
        assert [item["vm_name"] for item in (await shown(people, "?sort=vm_name"))["items"]] == ["new", "old"]
        assert refused(await people.administrator.get(f"/vms/{gone}/traffic")) == "not_found"


async def test_a_period_is_a_month_that_has_begun(stage: TrafficHarness) -> None:
    vm_id = await stage.machine("web")
    async with callers(stage) as people:
        for period in ("2026-13", "2026", "2026-1", "0000-02", "x", f"{next_period(period_of(stage.now))}"):
            for path in ("/traffic", f"/vms/{vm_id}/traffic"):
                assert refused(await people.administrator.get(f"{path}?period={period}")) == "invalid"
        assert (await shown(people, "?period=2020-02"))["items"] == []


async def test_an_allowance_for_machines_that_there_are_begins_with_the_next_month(stage: TrafficHarness) -> None:
    plan = await stage.plan()
    vm_id = await stage.machine("web", plan)
    await stage.sent(vm_id, 50)
    async with callers(stage) as people:
        answer = await put(people.administrator, f"/plans/{plan}/traffic", SUSPEND)
        begins = start_of(next_period(period_of(utc_now())))
        assert datetime.fromisoformat(answer["effective_from"]) == begins
        assert (answer["machines"], answer["deferred"]) == (1, True)
        assert f"{begins:%B %Y}" in answer["note"]
        assert "the allowance is 10 GiB a month" in answer["note"]
        assert answer["plan"]["traffic_gib"] is None
        assert answer["plan"]["traffic_pending"] == {
            **SUSPEND,
            "traffic_throttle_mbps": None,
            "effective_from": begins.isoformat().replace("+00:00", "Z"),
        }
        assert (await get(people.customer, "/plans"))["items"][0] == answer["plan"]
        assert (await get(people.customer, f"/vms/{vm_id}/traffic"))["position"]["state"] == "unlimited"


async def test_a_mixed_change_is_told_part_by_part(stage: TrafficHarness) -> None:
    plan = await stage.plan()
    await stage.allow(plan, Policy(10))
    vm_id = await stage.machine("web", plan)
    await stage.sent(vm_id, 15)
    await stage.enforce()
    async with callers(stage) as people:
        answer = await put(
            people.administrator, f"/plans/{plan}/traffic", {"traffic_gib": 20, "traffic_action": "suspend"}
        )
        assert (answer["plan"]["traffic_gib"], answer["plan"]["traffic_action"]) == (20, "report")
        assert answer["plan"]["traffic_pending"]["traffic_action"] == "suspend"
        assert answer["note"].startswith("At once: the allowance is 20 GiB a month. From 1 ")
        assert answer["note"].endswith("1 machine is within the allowance again.")
        assert (await get(people.customer, f"/vms/{vm_id}/traffic"))["history"][0]["action"] == "lift"
        again = await put(people.administrator, f"/plans/{plan}/traffic", {"traffic_gib": 20})
        assert (again["deferred"], again["plan"]["traffic_pending"]) == (False, None)
        assert re.fullmatch(r"The change decided for \w+ \d{4} is withdrawn\.", again["note"])
        same = await put(people.administrator, f"/plans/{plan}/traffic", {"traffic_gib": 20})
        assert same["note"] == "Nothing changes."


async def test_a_change_of_policy_is_audited_once(stage: TrafficHarness) -> None:
    plan = await stage.plan()
    async with callers(stage) as people:
        await put(people.administrator, f"/plans/{plan}/traffic", SUSPEND)
        rows = await stage.database.fetch("SELECT * FROM audit WHERE operation = 'plan.traffic'")
    assert [(row["actor"], row["outcome"], row["details"]["now"]["traffic_gib"]) for row in rows] == [
        ("administrator@example.com", "ok", 10)
    ]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"traffic_gib": 0},
        {"traffic_gib": -1},
        {"traffic_gib": 10, "traffic_action": "throttle"},
        {"traffic_gib": 10, "traffic_action": "throttle", "traffic_throttle_mbps": 0},
        {"traffic_gib": 10, "traffic_action": "explode"},
        {"traffic_gib": 10, "traffic_direction": "inbound"},
        {"traffic_gib": 10, "effective_from": "2020-01"},
    ],
)
async def test_a_policy_that_cannot_be_is_refused(stage: TrafficHarness, body: dict[str, object]) -> None:
    plan = await stage.plan()
    async with callers(stage) as people:
        assert refused(await people.administrator.call("PUT", f"/plans/{plan}/traffic", body)) == "invalid"
        [shown_plan] = (await get(people.administrator, "/plans"))["items"]
        assert (shown_plan["traffic_gib"], shown_plan["traffic_pending"]) == (None, None)


async def test_policies_are_the_administrators_and_set_in_their_own_place(stage: TrafficHarness) -> None:
    plan = await stage.plan()
    async with callers(stage) as people:
        for client in (people.customer, people.staff):
            assert refused(await client.call("PUT", f"/plans/{plan}/traffic", SUSPEND)) == "forbidden"
        assert refused(await people.administrator.call("PUT", f"/plans/{uuid4()}/traffic", SUSPEND)) == "not_found"
        assert refused(await people.administrator.call("PATCH", f"/plans/{plan}", {"traffic_gib": 5})) == "invalid"
        made = await people.administrator.post(
            "/plans", {"name": "New", "slug": "new", "vcpus": 1, "memory_mib": 512, "disk_gib": 5}
        )
        assert (made.json()["traffic_gib"], made.json()["traffic_direction"]) == (None, "outbound")
        assert (await put(people.administrator, f"/plans/{made.json()['id']}/traffic", SUSPEND))["plan"][
            "traffic_gib"
        ] == 10
        assert (await people.administrator.call("DELETE", f"/plans/{made.json()['id']}")).status_code == 204
