"""Which copies are made from which, and what goes with one that is not kept any more."""

from __future__ import annotations

from uuid import uuid4

from svc_nodeagent.hypervisor.backups.chains import parse_listing, tags_of, tags_of_note

ONE, TWO, THREE = (uuid4() for _ in range(3))
ENTRIES = (
    ("a", tags_of(ONE, None), "/disk-0.blocks"),
    ("b", tags_of(TWO, ONE), "/disk-0.changed"),
    ("c", tags_of(THREE, TWO), "/disk-0.changed"),
)


def test_a_copy_is_all_that_it_stands_on_and_without_a_part_of_it_nothing() -> None:
    assert [each.id for each in parse_listing(ENTRIES).chain(THREE, "disk-0")] == ["a", "b", "c"]
    assert parse_listing(ENTRIES).chain(THREE, "disk-1") == []
    assert parse_listing((ENTRIES[0], ENTRIES[2])).chain(THREE, "disk-0") == []
    assert parse_listing(ENTRIES[1:]).chain(THREE, "disk-0") == []
    assert parse_listing(ENTRIES).chain(uuid4(), "disk-0") == []


def test_what_another_stands_on_is_dropped_and_no_copy_any_more() -> None:
    gone, dropped = parse_listing(ENTRIES).without({ONE, THREE})
    assert ([each.id for each in gone], dropped) == (["c"], frozenset({ONE}))
    there = parse_listing((*ENTRIES[:2], ("n", tags_of_note(dropped), "/dropped")))
    assert (there.notes, there.dropped) == (("n",), frozenset({ONE}))
    assert there.chain(ONE, "disk-0") == [] == there.of(ONE)
    assert [each.id for each in there.chain(TWO, "disk-0")] == ["a", "b"]
    gone, dropped = there.without({TWO})
    assert ({each.id for each in gone}, dropped) == ({"a", "b"}, frozenset())


def test_what_is_left_of_a_copy_whose_chain_has_a_hole_is_left_alone() -> None:
    assert parse_listing(ENTRIES[1:]).without(()) == ([], frozenset())


def test_an_agent_of_the_release_before_takes_none_of_them_for_a_whole_disk() -> None:
    """It looks for snapshots that have one tag; its own have no blocks that another could stand on."""
    assert all(len(tags) > 1 for _, tags, _ in (*ENTRIES, ("n", tags_of_note({ONE}), "/dropped")))
    [old] = parse_listing([("d", (str(ONE),), "/disk-0.raw")]).chain(ONE, "disk-0")
    assert not old.by_blocks


def test_what_is_not_ours_is_left_out() -> None:
    assert parse_listing([("x", ("mine",), "/home"), ("y", (), "/disk-0.raw")]).snapshots == ()
