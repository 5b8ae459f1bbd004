"""What is done about a machine beyond its allowance, and what ends it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from svc_actors.controller.traffic.enforcement import enforce_plan
from svc_actors.controller.traffic.policies import set_policy
from svc_actors.controller.traffic.policy import UNLIMITED, Policy, TrafficAction
from svc_actors.store import Database
from tests.support.callers import ADMINISTRATOR
from tests.support.traffic import TrafficHarness, make_stage

REPORT, THROTTLE, SUSPEND = TrafficAction
DECEMBER = datetime(2026, 12, 1, 0, 1, tzinfo=UTC)
NOTHING = (None, False)


def policy(gib: int | None, action: TrafficAction = REPORT, mbps: int | None = None) -> Policy:
    return Policy(gib, action=action, throttle_mbps=mbps)


async def saved(stage: TrafficHarness, plan_id: object, wanted: Policy) -> None:
    """As PUT /plans/{id}/traffic does it."""
    async with stage.database.transaction() as tx:
        await set_policy(tx, ADMINISTRATOR, plan_id, wanted, now=stage.now)  # type: ignore[arg-type]
        await enforce_plan(tx, plan_id, stage.now)  # type: ignore[arg-type]


async def test_a_report_is_made_once_and_pointed_out_until_the_month_is_over(stage: TrafficHarness) -> None:
    plan = await stage.plan()
    await stage.allow(plan, policy(10))
    vm_id = await stage.machine("web", plan)
    await stage.sent(vm_id, 9.9)
    await stage.enforce()
    assert (await stage.history(vm_id), await stage.open_alerts()) == ([], [])
    await stage.sent(vm_id, 10)
    for _ in range(3):
        await stage.enforce()
    assert await stage.history(vm_id) == [("2026-11", "report")]
    assert await stage.open_alerts() == [f"traffic:{vm_id}:2026-11"]
    assert await stage.in_force(vm_id) == NOTHING
    stage.now = DECEMBER
    await stage.enforce()
    assert await stage.history(vm_id) == [("2026-11", "report"), ("2026-11", "lift")]
    assert await stage.open_alerts() == []


@pytest.mark.parametrize(
    ("allowed", "in_force"),
    [(policy(10, THROTTLE, 5), (5, False)), (policy(10, SUSPEND), (None, True))],
)
async def test_a_sanction_is_in_force_until_the_month_is_over(
    stage: TrafficHarness, allowed: Policy, in_force: tuple[int | None, bool]
) -> None:
    plan = await stage.plan()
    await stage.allow(plan, allowed)
    vm_id = await stage.machine("web", plan)
    await stage.sent(vm_id, 10.5)
    before = await stage.vm(vm_id)
    for _ in range(3):
        await stage.enforce()
    after = await stage.vm(vm_id)
    assert await stage.in_force(vm_id) == in_force
    assert after["net_wanted"] == before["net_wanted"] + 1, "its host is told, once"
    assert (after["status"], after["rate_mbps"]) == (before["status"], before["rate_mbps"])
    stage.now = DECEMBER
    await stage.enforce()
    assert await stage.in_force(vm_id) == NOTHING
    assert (await stage.vm(vm_id))["net_wanted"] == before["net_wanted"] + 2
    assert await stage.history(vm_id) == [("2026-11", allowed.action.value), ("2026-11", "lift")]


async def test_a_decision_says_why_and_is_in_the_audit_as_the_services_own(stage: TrafficHarness) -> None:
    plan = await stage.plan()
    await stage.allow(plan, policy(10, THROTTLE, 5))
    vm_id = await stage.machine("web", plan)
    await stage.sent(vm_id, 12)
    await stage.enforce()
    row = await stage.database.fetchrow("SELECT * FROM traffic_decisions")
    assert row is not None
    assert (row["counted_bytes"], row["allowance_bytes"], row["at"]) == (12 * 2**30, 10 * 2**30, stage.now)
    assert row["reason"] == ("Sent 12.0 GiB of 10 GiB in 2026-11; it is throttled to 5 Mbit/s until the month is over.")
    written = await stage.database.fetchrow("SELECT * FROM audit WHERE operation = 'traffic.enforce'")
    assert written is not None
    assert (written["actor"], written["via"], written["target_id"]) == ("system", "system", str(vm_id))
    assert (written["project_id"], written["details"]["action"]) == (stage.project_id, "throttle")


async def test_a_raised_or_removed_allowance_lets_machines_go_at_once(stage: TrafficHarness) -> None:
    plan = await stage.plan()
    await stage.allow(plan, policy(10, SUSPEND))
    twelve, thirty = await stage.machine("twelve", plan), await stage.machine("thirty", plan)
    await stage.sent(twelve, 12)
    await stage.sent(thirty, 30)
    await stage.enforce()
    await saved(stage, plan, policy(20, SUSPEND))
    assert await stage.in_force(twelve) == NOTHING
    assert await stage.in_force(thirty) == (None, True)
    await saved(stage, plan, UNLIMITED)
    assert await stage.in_force(thirty) == NOTHING
    assert await stage.history(thirty) == [("2026-11", "suspend"), ("2026-11", "lift")]
    reasons = await stage.database.fetch("SELECT reason FROM traffic_decisions WHERE action = 'lift' ORDER BY id")
    assert [row["reason"] for row in reasons] == [
        "Its allowance is 20 GiB now, which is not used up.",
        "Its traffic is no longer limited.",
    ]


async def test_a_milder_action_takes_the_place_of_a_harder_one_at_once(stage: TrafficHarness) -> None:
    plan = await stage.plan()
    await stage.allow(plan, policy(10, SUSPEND))
    vm_id = await stage.machine("web", plan)
    await stage.sent(vm_id, 12)
    await stage.enforce()
    for mbps in (5, 8):
        await saved(stage, plan, policy(10, THROTTLE, mbps))
        assert await stage.in_force(vm_id) == (mbps, False)
    await saved(stage, plan, policy(10, REPORT))
    assert (await stage.in_force(vm_id), len(await stage.open_alerts())) == (NOTHING, 1)
    assert [action for _, action in await stage.history(vm_id)] == ["suspend", "throttle", "throttle", "report"]


async def test_a_tightening_waits_for_the_next_month_and_needs_nobody_then(stage: TrafficHarness) -> None:
    plan = await stage.plan()
    vm_id = await stage.machine("web", plan)
    await stage.sent(vm_id, 50)
    await saved(stage, plan, policy(10, SUSPEND))
    await stage.enforce()
    assert await stage.history(vm_id) == []
    # The service was down over the month's end.
    stage.now = DECEMBER + timedelta(days=9)
    await stage.sent(vm_id, 9)
    await stage.enforce()
    assert await stage.history(vm_id) == []
    await stage.sent(vm_id, 11)
    await stage.enforce()
    assert await stage.history(vm_id) == [("2026-12", "suspend")]


async def test_a_machine_whose_node_can_hold_no_rate_is_reported_until_it_can(stage: TrafficHarness) -> None:
    """Its host would refuse its whole network, and the machine could not even be started."""
    plan = await stage.plan()
    await stage.allow(plan, policy(10, THROTTLE, 5))
    vm_id = await stage.machine("web", plan)
    await stage.sent(vm_id, 12)
    facts = "UPDATE nodes SET facts = $2 WHERE id = $1"
    await stage.database.execute(facts, stage.node_id, {"network_lacks": {"rate": "no ifb devices"}})
    before = await stage.vm(vm_id)
    for _ in range(2):
        await stage.enforce()
    assert await stage.history(vm_id) == [("2026-11", "report")]
    assert (await stage.in_force(vm_id), len(await stage.open_alerts())) == (NOTHING, 1)
    assert (await stage.vm(vm_id))["net_wanted"] == before["net_wanted"]
    reason = await stage.database.fetchval("SELECT reason FROM traffic_decisions")
    assert reason.endswith("its host can hold no rate: it is reported until the month is over.")
    await stage.database.execute(facts, stage.node_id, {"network_lacks": {}})
    await stage.enforce()
    assert (await stage.in_force(vm_id), await stage.open_alerts()) == ((5, False), [])


async def test_what_was_put_off_can_be_taken_back(stage: TrafficHarness) -> None:
    plan = await stage.plan()
    vm_id = await stage.machine("web", plan)
    await saved(stage, plan, policy(10, SUSPEND))
    await saved(stage, plan, UNLIMITED)
    stage.now = DECEMBER
    await stage.sent(vm_id, 50)
    await stage.enforce()
    assert await stage.history(vm_id) == []


async def test_a_plan_without_machines_changes_at_once(stage: TrafficHarness) -> None:
    plan = await stage.plan()
    done = await stage.allow(plan, policy(10))
    assert (done.change.later, done.effective_from, done.machines) == (None, stage.now, 0)


async def test_a_clock_that_is_set_back_finds_the_policy_of_that_month(stage: TrafficHarness) -> None:
    plan = await stage.plan()
    vm_id = await stage.machine("web", plan)
    await stage.sent(vm_id, 50)
    await saved(stage, plan, policy(10, SUSPEND))
    november, stage.now = stage.now, DECEMBER
    await stage.sent(vm_id, 11)
    await stage.enforce()
    assert await stage.in_force(vm_id) == (None, True)
    stage.now = november
    await stage.enforce()
    assert await stage.in_force(vm_id) == NOTHING, "in November there was no allowance"
    stage.now = DECEMBER
    await stage.enforce()
    assert [action for _, action in await stage.history(vm_id)] == ["suspend", "lift", "suspend"]


async def test_who_changes_to_a_larger_plan_or_is_deleted_is_let_go(stage: TrafficHarness) -> None:
    small, large = await stage.plan("small"), await stage.plan("large")
    await stage.allow(small, policy(10, SUSPEND))
    await stage.allow(large, policy(100, SUSPEND))
    moved, gone = await stage.machine("moved", small), await stage.machine("gone", small)
    for vm_id in (moved, gone):
        await stage.sent(vm_id, 20)
    await stage.enforce()
    await stage.database.execute("UPDATE vms SET plan_id = $2 WHERE id = $1", moved, large)
    await stage.database.execute("UPDATE vms SET deleted_at = now(), status = 'deleted' WHERE id = $1", gone)
    await stage.enforce()
    assert await stage.in_force(moved) == NOTHING
    assert [action for _, action in await stage.history(gone)] == ["suspend", "lift"]


async def test_a_policy_that_is_being_loosened_is_waited_for(stage: TrafficHarness) -> None:
    plan = await stage.plan()
    await stage.allow(plan, policy(10, SUSPEND))
    vm_id = await stage.machine("web", plan)
    await stage.sent(vm_id, 12)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with trio.open_nursery() as nursery:
        async with stage.database.transaction() as tx:
            await set_policy(tx, ADMINISTRATOR, plan, policy(20, SUSPEND), now=stage.now)
            nursery.start_soon(stage.enforce)
            with trio.fail_after(60):
                while not await stage.database.fetchval(waiting):
                    await trio.lowlevel.checkpoint()
    assert await stage.history(vm_id) == []


async def test_several_processes_decide_once(stage: TrafficHarness) -> None:
    plan = await stage.plan()
    await stage.allow(plan, policy(1, SUSPEND))
    machines = [await stage.machine(f"vm{number}", plan) for number in range(8)]
    for vm_id in machines:
        await stage.sent(vm_id, 2)
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(stage.enforce)
    assert [await stage.history(vm_id) for vm_id in machines] == [[("2026-11", "suspend")]] * 8


policies = st.one_of(
    st.just(UNLIMITED),
    st.builds(policy, st.integers(1, 4), st.sampled_from([REPORT, SUSPEND])),
    st.builds(policy, st.integers(1, 4), st.just(THROTTLE), st.integers(1, 3)),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("save"), policies), st.tuples(st.just("send"), st.integers(1, 5)), st.just(("month", None))
    ),
    max_size=12,
)


async def test_a_saved_policy_never_makes_things_worse_in_its_month(stage: TrafficHarness) -> None:
    @settings(max_examples=60, deadline=None)
    @given(steps)
    def holds(taken: list[tuple[str, object]]) -> None:
        trio.from_thread.run(nothing_gets_worse, stage.database, taken)

    await trio.to_thread.run_sync(holds)


async def nothing_gets_worse(database: Database, taken: list[tuple[str, object]]) -> None:
    stage = await make_stage(database)
    plan = await stage.plan()
    vm_id = await stage.machine("web", plan)
    sent = 0
    for step, value in taken:
        throttle, suspended = await stage.in_force(vm_id)
        match value:
            case Policy():
                await saved(stage, plan, value)
                mbps, isolated = await stage.in_force(vm_id)
                assert not isolated or suspended
                assert mbps is None or suspended or (throttle is not None and mbps >= throttle)
            case int():
                sent += value
                await stage.sent(vm_id, sent)
            case _:
                stage.now += timedelta(days=31)
                sent = 0
        await stage.enforce()
        if step == "month":
            assert await stage.in_force(vm_id) == NOTHING
