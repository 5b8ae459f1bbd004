"""Tables are for reading, JSON and YAML are what the API said."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from svc.cli.output import Format, Style, ago, columns, show, size
from svc.controller.catalogue import controller_registry

ROWS: list[dict[str, Any]] = [
    {"name": "a", "memory_mib": 1536, "size_bytes": 19243520, "location": {"name": "here", "id": 7}, "on": True},
    {"name": "b\x1b[31m", "memory_mib": 256, "size_bytes": None, "location": {"name": "there", "id": 8}, "on": False},
]


def printed(capsys: pytest.CaptureFixture[str], result: Any, **style: Any) -> str:
    show(result, Style(**style))
    return capsys.readouterr().out


def test_sizes_have_units_in_tables_and_are_raw_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    table = printed(capsys, ROWS)
    assert "1.5 GiB" in table
    assert "18.4 MiB" in table
    assert '"memory_mib": 1536' in printed(capsys, ROWS, format=Format.JSON)
    assert yaml.safe_load(printed(capsys, ROWS[:1], format=Format.YAML)) == ROWS[:1]


def test_columns_are_chosen_by_dotted_names_and_unknown_ones_refused(capsys: pytest.CaptureFixture[str]) -> None:
    table = printed(capsys, ROWS, columns=("name", "location.name"), header=False)
    assert [line.split() for line in table.splitlines()] == [["a", "here"], ["b\\x1b[31m", "there"]]
    with pytest.raises(Exception, match=r"no column colour; the columns are name, memory_mib"):
        printed(capsys, ROWS, columns=("colour",))


def test_a_long_list_within_a_result_is_a_table_below_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    plan = [{"kind": "site", "name": f"{number}.example", "wanted": True, "more": []} for number in range(6)]

    long = printed(capsys, {"id": 7, "plan": plan, "state": "ready"}).splitlines()
    short = printed(capsys, {"id": 7, "plan": plan[:2]}).splitlines()

    assert [line.split() for line in long[:2]] == [["id", "7"], ["state", "ready"]]
    assert [line.split() for line in long[2:6]] == [
        [],
        ["plan"],
        ["kind", "name", "wanted"],
        ["site", "0.example", "yes"],
    ]
    assert len(long) == 4 + 1 + 6
    assert len(short) == 3


def test_nothing_in_a_result_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b" not in printed(capsys, ROWS)
    assert "\x1b" not in printed(capsys, ROWS[1])


def test_a_long_value_stays_on_its_line_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    table = printed(capsys, [{"name": "x" * 500, "on": True}], header=False)
    assert len(table.splitlines()) == 1


def test_domain_names_are_in_their_letters_for_reading_and_as_they_are_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sites = [
        {"domain": "xn--mller-shop-9db.example.net", "aliases": ["xn--bcher-kva.example", "xn--pypal-4ve.example"]}
    ]

    listed = printed(capsys, sites, header=False)
    one = printed(capsys, sites[0])
    chosen = printed(capsys, sites, columns=("domain",), header=False)

    assert listed.split("\n")[0] == "müller-shop.example.net"
    assert "müller-shop.example.net (xn--mller-shop-9db.example.net)" in one
    assert "bücher.example (xn--bcher-kva.example), xn--pypal-4ve.example" in one
    assert chosen.strip() == "xn--mller-shop-9db.example.net"
    assert "ü" not in printed(capsys, sites, format=Format.JSON)


def test_an_empty_list_prints_nothing_into_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, []) == ""
    assert printed(capsys, [], format=Format.JSON) == "[]\n"


def test_a_terminal_too_narrow_for_a_table_is_shown_what_fits_and_told_the_rest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    row = {
        "name": "web-1",
        "state": "online",
        "message": "a text that is folded",
        "location": "cellar",
        "free": "9 GiB",
    }

    show([row], Style(), columns=columns(row))
    shown = capsys.readouterr()

    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.out)
    assert [line.split() for line in plain.splitlines()] == [
        ["name", "state", "message"],
        ["web-1", "online", "a", "text", "that", "is", "folded"],
    ]
    assert "location, free" in shown.err
    show([row], Style(columns=("name", "free")))
    assert "9 GiB" in capsys.readouterr().out


def test_sizes_and_spans_read_well() -> None:
    assert [size(n) for n in (0, 1023, 1024, 1536, 20 * 2**30)] == ["0 B", "1023 B", "1 KiB", "1.5 KiB", "20 GiB"]
    now = datetime.now(UTC)
    assert ago((now - timedelta(minutes=5, seconds=30)).isoformat()) == "5 min ago"
    assert ago((now + timedelta(days=3, hours=1)).isoformat()) == "in 3 d"


def test_every_list_has_columns_of_its_own() -> None:
    lists = [operation for operation in controller_registry() if operation.name.endswith(".list")]
    # A folder is one thing, which has its entries among other things.
    lists.remove(controller_registry()["vm.files.list"])

    assert [operation.name for operation in lists if not operation.command.columns] == []
