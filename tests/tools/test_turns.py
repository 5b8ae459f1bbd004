"""Runs of tests on one machine take turns at what is one there."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from tests.support.turns import Turn, Turns, turn_of
from tools.testing.files import ROOT

ANOTHER = """
import sys
from pathlib import Path
from tests.support.turns import Turn, Turns
turns = Turns(1, Path(sys.argv[1]))
turns.take(Turn(sys.argv[2], "tests/test_other.py"))
print("has it", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def turns(tmp_path: Path) -> Turns:
    return Turns(os.open(tmp_path / "told", os.O_CREAT | os.O_WRONLY), tmp_path / "turns")


def another(turns: Turns, what: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ANOTHER, str(turns.folder), what]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_another_run_has_its_turn_after_the_last_test_of_the_file(turns: Turns) -> None:
    mine = Turn("accounts", "tests/test_mine.py")
    turns.take(mine)
    with another(turns, "accounts") as waiting:
        assert waiting.stdout is not None
        assert waiting.stdin is not None
        assert waiting.stdout.readline() == "\n"
        told = waiting.stdout.readline()
        turns.until(mine)
        turns.take(mine)
        turns.until(None)
        has = waiting.stdout.readline()
        waiting.communicate("done\n")

    assert told == "tests/test_other.py waits: another run on this machine uses its accounts\n"
    assert has == "has it\n"


def test_who_needs_something_else_does_not_wait(turns: Turns) -> None:
    turns.take(Turn("accounts", "tests/test_mine.py"))
    with another(turns, "libvirt") as other:
        output, _ = other.communicate("done\n")

    assert output == "has it\n"


@dataclass
class Item:
    """As much of a test as is looked at."""

    nodeid: str
    marks: tuple[str, ...]

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None


def test_what_is_shared_goes_by_marks_and_place() -> None:
    def turn(file: str, *marks: str) -> Turn | None:
        return turn_of(cast(pytest.Item, Item(f"{file}::test_one", marks)))

    panel, host = "tests/system/panel/test_one.py", "tests/system/test_one.py"
    assert turn(panel, "system", "isolated") == Turn("accounts", panel)
    assert turn(host, "system") == Turn("libvirt", host)
    assert turn(host, "system", "isolated") is None
    assert turn(host, "system", "own_host") is None
    assert turn("tests/panel/test_one.py") is None
    assert turn_of(None) is None
