"""How one traffic policy takes the place of another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_actors.controller.traffic.policy import (
    GIB,
    UNLIMITED,
    Policy,
    PolicyChange,
    Sanction,
    TrafficAction,
    TrafficDirection,
    change,
)

REPORT, THROTTLE, SUSPEND = TrafficAction
OUTBOUND, BOTH = TrafficDirection


def policy(gib: int | None, action: TrafficAction = REPORT, mbps: int | None = None, **more: object) -> Policy:
    return Policy(gib, action=action, throttle_mbps=mbps, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("current", "wanted", "now", "later"),
    [
        (UNLIMITED, policy(100), UNLIMITED, policy(100)),
        (UNLIMITED, policy(100, SUSPEND), UNLIMITED, policy(100, SUSPEND)),
        (policy(100), policy(200), policy(200), None),
        (policy(100, SUSPEND), UNLIMITED, UNLIMITED, None),
        (policy(200), policy(100), policy(200), policy(100)),
        (policy(100), policy(100), policy(100), None),
        (policy(100, REPORT), policy(100, SUSPEND), policy(100, REPORT), policy(100, SUSPEND)),
        (policy(100, SUSPEND), policy(100, THROTTLE, 5), policy(100, THROTTLE, 5), None),
        (policy(100, THROTTLE, 5), policy(100, SUSPEND), policy(100, THROTTLE, 5), policy(100, SUSPEND)),
        (policy(100, THROTTLE, 5), policy(100, THROTTLE, 10), policy(100, THROTTLE, 10), None),
        (policy(100, THROTTLE, 10), policy(100, THROTTLE, 5), policy(100, THROTTLE, 10), policy(100, THROTTLE, 5)),
        (policy(100, direction=BOTH), policy(100), policy(100), None),
        (policy(100), policy(100, direction=BOTH), policy(100), policy(100, direction=BOTH)),
        # Mixed: the larger allowance at once, the harder action next month; and the other way round.
        (policy(100, REPORT), policy(200, SUSPEND), policy(200, REPORT), policy(200, SUSPEND)),
        (policy(200, SUSPEND), policy(100, REPORT), policy(200, REPORT), policy(100, REPORT)),
    ],
)
def test_what_loosens_counts_at_once_and_what_tightens_later(
    current: Policy, wanted: Policy, now: Policy, later: Policy | None
) -> None:
    assert change(current, wanted, in_use=True) == PolicyChange(now, later)


@pytest.mark.parametrize("wanted", [UNLIMITED, policy(1, SUSPEND), policy(1, THROTTLE, 1, direction=BOTH)])
def test_a_plan_that_nobody_has_changes_at_once(wanted: Policy) -> None:
    assert change(policy(1000), wanted, in_use=False) == PolicyChange(wanted, None)


def test_an_allowance_is_used_up_by_its_last_byte() -> None:
    allowed = policy(1, THROTTLE, 5)
    assert allowed.sanction(GIB - 1) is None
    assert allowed.sanction(GIB) == Sanction(THROTTLE, 5)


def test_a_throttle_has_a_rate() -> None:
    with pytest.raises(ValueError, match="rate"):
        policy(1, THROTTLE)


allowances = st.none() | st.integers(1, 4)
rates = st.integers(1, 3)
policies = st.one_of(
    st.builds(Policy, allowances, st.sampled_from(TrafficDirection), st.just(THROTTLE), rates),
    st.builds(
        Policy, allowances, st.sampled_from(TrafficDirection), st.sampled_from([REPORT, SUSPEND]), st.none() | rates
    ),
)
amounts = st.integers(0, 5 * GIB)


def severity(sanction: Sanction | None) -> tuple[int, int]:
    """How hard a sanction is, to be compared."""
    if sanction is None:
        return (0, 0)
    return (1 + list(TrafficAction).index(sanction.action), -(sanction.throttle_mbps or 0))


@given(policies, policies, amounts, amounts)
def test_nobody_is_in_breach_of_a_limit_that_did_not_exist_yesterday(
    current: Policy, wanted: Policy, received: int, sent: int
) -> None:
    changed = change(current, wanted, in_use=True)
    before = current.sanction(current.counted(received, sent))
    after = changed.now.sanction(changed.now.counted(received, sent))
    assert severity(after) <= severity(before)


@given(policies, policies, amounts, amounts)
def test_what_was_wanted_is_in_force_next_month_and_what_it_pardons_at_once(
    current: Policy, wanted: Policy, received: int, sent: int
) -> None:
    changed = change(current, wanted, in_use=True)
    assert (changed.later or changed.now) == wanted
    raised = wanted.allowance_gib is None or (current.allowance_gib or wanted.allowance_gib) < wanted.allowance_gib
    if raised:
        assert changed.now.allowance_gib == wanted.allowance_gib


@given(policies, policies)
def test_the_same_change_again_changes_nothing_more_this_month(current: Policy, wanted: Policy) -> None:
    once = change(current, wanted, in_use=True)
    assert change(once.now, wanted, in_use=True) == once
