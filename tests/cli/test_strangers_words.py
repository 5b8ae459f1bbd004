"""Nothing that a guest, a node, a visitor or a customer has written steers the terminal of the person who reads it."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import svc.cli
import svc.service
from svc.cli.failures import Exit, Failure
from svc.cli.following import check, follow
from svc.cli.output import Format, Style, show
from svc.cli.terminal import say, visible, write
from svc.cli.work import Work, WorkKind

HOSTILE: Final = (
    "\x1b]0;PWNED\x07",  # the title
    "\x1b]52;c;ZXZpbA==\x07",  # the clipboard
    "\x1b[31m\x1b[2J",
    "\x9b31m\x9d0;x\x9c",  # the same in C1
    "over\rwritten\b\b",
    "\u202egnp.exe",
    "\u2066a\u2069\u200f\u061c",
    "\x00\x7f",
)
MARKUP: Final = "[link=https://evil.example]x[/link][bold]"
WORDS: Final = "".join(HOSTILE) + MARKUP
RAW: Final = set("".join(HOSTILE)) - set("]0;PWNED52;c;ZXZpbA==[31m[2J31m0;xoverwrittengnp.exea")


def assert_harmless(printed: str) -> None:
    assert RAW.isdisjoint(printed)
    assert MARKUP in printed.replace("\n", "")


@pytest.mark.parametrize(
    "result",
    [[{"name": WORDS}], {"name": WORDS}, {"facts": {"os": WORDS}}, [WORDS], WORDS, {"name": [WORDS, {"a": WORDS}]}],
    ids=["table", "fields", "nested", "lines", "text", "list in a cell"],
)
@pytest.mark.parametrize("format_", list(Format))
def test_results_have_no_order_for_the_terminal(
    result: Any, format_: Format, capsys: pytest.CaptureFixture[str]
) -> None:
    show(result, Style(format=format_))
    printed = capsys.readouterr().out
    assert_harmless(printed.replace('\\"', '"') if format_ is Format.JSON else printed)
    if format_ is Format.JSON:
        assert json.loads(printed) == result
    if format_ is Format.YAML and not isinstance(result, str):
        assert yaml.safe_load(printed) == result


def test_messages_failures_and_hints_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    say(WORDS)
    assert_harmless(capsys.readouterr().err)
    Failure(Exit.FAILED, WORDS, WORDS, request_id=WORDS).show()
    assert_harmless(capsys.readouterr().err)


def test_a_lone_surrogate_is_printed_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    write("a\udcffb")
    assert capsys.readouterr().out == "a\\udcffb\n"


def test_lines_and_tabs_stay() -> None:
    assert visible("a\tb\nc") == "a\tb\nc"


async def test_followed_work_has_none_in_its_log_and_title(capsys: pytest.CaptureFixture[str]) -> None:
    class Answers:
        """What a service answers of one task whose node and owner are hostile."""

        asked = 0

        async def call(self, method: str, path: str, **_: Any) -> Any:
            if not path.endswith("/events"):
                return {"status": "succeeded", "progress": 100, "op": "vm.reset", "resource_name": WORDS}
            self.asked += 1
            return [{"position": 1, "message": WORDS, "level": "warning"}] if self.asked == 1 else []

    work = Work(WorkKind.TASK, "1")
    ended = await follow(Answers(), work)  # type: ignore[arg-type] # the one method of a client that is used
    assert_harmless(capsys.readouterr().err)
    with pytest.raises(Failure) as raised:
        check(work, {**ended, "status": "failed", "error": {"message": WORDS, "code": "host", "hint": WORDS}})
    raised.value.show()
    assert_harmless(capsys.readouterr().err)


def test_all_that_is_printed_goes_through_one_door() -> None:
    """A new `print`, `click.echo` or write to a stream beside it would print a stranger's words raw."""
    packages = [Path(svc.cli.__file__).parent, Path(svc.service.__file__).parent]
    raw_by_nature = {
        "terminal.py",
        "output.py",  # its tables are printed by rich, of cells that are made visible
        "following.py",  # so are the lines of a log
        "console.py",  # a guest's console is a terminal of its own
        "download.py",  # refuses a terminal
        "transfer.py",  # refuses a terminal
    }
    found = [
        f"{module.relative_to(package)}:{node.lineno}"
        for package in packages
        for module in sorted(package.rglob("*.py"))
        if module.name not in raw_by_nature
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Call) and _prints(node.func)
    ]
    assert found == []


def _prints(function: ast.expr) -> bool:
    match ast.unparse(function):
        case "print" | "click.echo" | "click.secho" | "click.echo_via_pager":
            return True
        case name:
            return name.endswith(
                (".print", ".stdout.write", ".stderr.write", ".stdout.buffer.write", ".stderr.buffer.write")
            )
