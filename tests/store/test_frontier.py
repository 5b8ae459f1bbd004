"""Where the sequencer looks: above what it has moved, and at every gap that a transaction may still fill."""

from __future__ import annotations

import random

from svc_actors.store.frontier import Frontier


def test_until_the_transactions_of_before_are_over_everything_is_looked_at() -> None:
    frontier = Frontier(last_drawn=100)
    frontier.moved([90, 101])

    frontier.check(oldest_running=5, next_transaction=9)
    frontier.check(oldest_running=8, next_transaction=20)
    assert frontier.scan_after == 0

    frontier.check(oldest_running=9, next_transaction=20)
    assert frontier.scan_after == 101


def test_a_gap_is_kept_until_nobody_can_fill_it() -> None:
    frontier = Frontier(last_drawn=0)
    frontier.moved([1, 4])
    assert frontier.gaps == {2, 3}

    frontier.check(oldest_running=5, next_transaction=9)
    frontier.moved([2])
    frontier.check(oldest_running=8, next_transaction=12)
    assert frontier.gaps == {3}

    frontier.check(oldest_running=9, next_transaction=12)
    assert frontier.gaps == set()


def test_whatever_commits_in_whatever_order_is_found() -> None:
    """Against a model: transactions draw ids, then commit or roll back in any order; looks and checks come any time."""
    for seed in range(200):
        choose = random.Random(seed)
        frontier = Frontier(last_drawn=0)
        drawn = 0
        running: dict[int, list[int]] = {}
        next_transaction = 1
        visible: set[int] = set()
        for _ in range(300):
            step = choose.random()
            if step < 0.4:
                ids = list(range(drawn + 1, drawn + 1 + choose.randint(1, 3)))
                drawn = ids[-1]
                running[next_transaction] = ids
                next_transaction += 1
            elif step < 0.75 and running:
                ids = running.pop(choose.choice(list(running)))
                visible.update(ids if choose.random() < 0.8 else ())
            elif step < 0.95:
                found = sorted(i for i in visible if i > frontier.scan_after or i in frontier.gaps)
                assert found == sorted(visible), f"seed {seed}"
                visible.clear()
                frontier.moved(found)
            else:
                frontier.moved(sorted(visible))
                visible.clear()
                frontier.check(min(running, default=next_transaction), next_transaction)
