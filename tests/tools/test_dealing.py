"""How files are dealt to lanes, and what the lists that `tools/test` keeps in the tree say."""

from __future__ import annotations

from pathlib import Path

from tools.testing.dealing import WITH_ACCOUNTS, Share, deal, shares_of_system, slow_beside_system
from tools.testing.files import FLAKY, ROOT, TIMES
from tools.testing.flaky import NEVER_REPEATED, ledger
from tools.testing.times import Kind, Times

ISOLATED = Kind.ISOLATED


def test_lanes_end_together() -> None:
    times = Times({ISOLATED: {f"tests/test_{seconds}.py": seconds for seconds in (600, 300, 200, 100, 50, 40, 30)}})

    shares = [Share(), Share()]
    deal([(file, ISOLATED) for file in times.seconds[ISOLATED]], times, shares)

    assert sorted(share.seconds for share in shares) == [650, 670]
    assert sorted(file for share in shares for file in share.files) == sorted(times.seconds[ISOLATED])


def test_a_file_that_nobody_has_measured_counts_too() -> None:
    shares = [Share(), Share()]
    deal([(f"tests/test_{number}.py", ISOLATED) for number in range(10)], Times(), shares)

    assert [len(share.files) for share in shares] == [5, 5]


def test_what_shares_the_hosts_libvirt_is_in_one_lane() -> None:
    times = Times({Kind.UNIT: {"tests/test_slow.py": 50}})
    collected = {
        "tests/test_mixed.py": [Kind.UNIT, Kind.ISOLATED, Kind.HOST],
        "tests/test_host.py": [Kind.HOST],
        "tests/test_slow.py": [Kind.UNIT],
        "tests/test_fast.py": [Kind.UNIT],
    }

    first, second = shares_of_system(collected, times, 2)

    assert first.files == {"tests/test_host.py": [Kind.HOST], "tests/test_mixed.py": [Kind.HOST]}
    assert second.files == {"tests/test_slow.py": [Kind.UNIT], "tests/test_mixed.py": [Kind.ISOLATED]}


def test_tests_that_give_sites_accounts_are_in_one_lane() -> None:
    panels = [f"tests/system/panel/test_{letter}.py" for letter in "abcdef"]
    collected = {file: [ISOLATED] for file in [*panels, "tests/system/test_other.py"]}

    first, second = shares_of_system(collected, Times(), 2)

    assert list(first.files) == ["tests/system/test_other.py"]
    assert sorted(second.files) == panels


def test_no_unit_test_that_gives_sites_accounts_runs_beside_the_system_tests_that_end_what_those_run() -> None:
    times = Times({Kind.UNIT: {"tests/panel/test_slow.py": 50, "tests/store/test_slow.py": 50}})
    collected = {file: [Kind.UNIT] for file in times.seconds[Kind.UNIT]}

    [share] = shares_of_system(collected, times, 1)

    assert slow_beside_system(times) == list(share.files) == ["tests/store/test_slow.py"]


def test_no_test_needs_the_lane_of_the_hosts_libvirt_and_that_of_accounts() -> None:
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if _name(path).startswith(WITH_ACCOUNTS)]
    marked = [text for text in (path.read_text() for path in files) if "mark.system" in text]

    assert len(marked) > 50
    assert [text for text in marked if "mark.isolated" not in text] == []


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_lane_of_the_hosts_libvirt_takes_others_when_it_has_little() -> None:
    collected = {"tests/test_host.py": [Kind.HOST], **{f"tests/test_{letter}.py": [ISOLATED] for letter in "abcdef"}}

    first, second = shares_of_system(collected, Times(), 2)

    assert first.seconds == second.seconds
    assert "tests/test_host.py" in first.files


def test_the_times_in_the_tree_are_as_the_refresh_writes_them() -> None:
    assert Times.read(TIMES).written() == TIMES.read_text()


def test_the_ledger_names_tests_that_there_are_and_may_be_repeated() -> None:
    for entry in ledger(FLAKY):
        assert (ROOT / entry.test.partition("::")[0]).exists()
        assert not entry.test.startswith(NEVER_REPEATED)
        assert entry.why.endswith(".")
