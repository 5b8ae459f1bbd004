"""Which keys of orders are remembered for a database that has lost commits, and for how long."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trio

from svc_actors.store import CommitMarks
from svc_actors.store.marks import FILE
from svc_actors.store.remembered_keys import KEYS_FOR, MOST_KEYS


def test_the_newest_keys_are_kept(tmp_path: Path) -> None:
    marks = CommitMarks.load(tmp_path)
    for number in range(MOST_KEYS + 3):
        marks.note_key(("token:1", str(number)))
    marks.forget_key(("token:1", str(MOST_KEYS)))

    assert len(marks.keys) == MOST_KEYS - 1
    assert marks.keys[0] == ("token:1", "3")


def test_who_orders_much_has_no_order_of_another_forgotten(tmp_path: Path) -> None:
    marks = CommitMarks.load(tmp_path)
    marks.note_key(("token:1", "order-7"))

    for number in range(MOST_KEYS + 3):
        marks.note_key(("token:2", str(number)))

    assert len(marks.keys) == MOST_KEYS
    assert ("token:1", "order-7") in marks.keys
    assert ("token:2", "2") not in marks.keys
    assert ("token:2", str(MOST_KEYS + 2)) in marks.keys


def test_keys_are_remembered_for_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their answers were kept no longer: another order with the same key is a new one."""
    clock = [1_000_000.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    marks = CommitMarks.load(tmp_path)
    marks.note_key(("token:1", "old"))
    clock[0] += KEYS_FOR - 1
    marks.note_key(("token:1", "new"))
    trio.run(marks.write)
    assert CommitMarks.load(tmp_path).keys == [("token:1", "old"), ("token:1", "new")]

    clock[0] += 2

    assert marks.keys == CommitMarks.load(tmp_path).keys == [("token:1", "new")]


def test_a_file_of_the_release_before_has_keys_without_a_time(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({"holder": str(uuid4()), "marks": {"0": 3}, "keys": [["token:1", "k"]]}))

    assert CommitMarks.load(tmp_path).keys == [("token:1", "k")]


def test_an_order_does_not_count_all_keys(tmp_path: Path) -> None:
    marks = CommitMarks.load(tmp_path)
    for number in range(MOST_KEYS):
        marks.note_key((f"token:{number % 2}", str(number)))
    calls = []

    def count(frame: Any, event: str, argument: object) -> None:
        calls.append(event)

    sys.setprofile(count)
    try:
        marks.note_key(("token:3", "one more"))
    finally:
        sys.setprofile(None)

    assert len(calls) < 100
