"""Commands and operations are one list: each operation has its command, and each command says what it takes."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import asyncclick as click
import httpx
import pytest
import trio
from asyncclick.shell_completion import ShellComplete

from svc.cli import description
from svc.cli.app import build
from svc.cli.description import OperationDescription, describe
from svc.cli.failures import EXIT_BY_CODE, Exit
from svc.cli.parameters import option
from svc.controller.catalogue import controller_registry
from svc_common.errors import ErrorCode
from tests.cli.conftest import Terminal

ROOT = Path(__file__).resolve().parents[2]
SERVICE = describe(controller_registry())


def command_of(operation: OperationDescription) -> click.Command:
    found: click.Command = build(SERVICE)
    for word in operation.words:
        assert isinstance(found, click.Group)
        found = found.commands[word]
    return found


def described(name: str) -> OperationDescription:
    return next(operation for operation in SERVICE.operations if operation.name == name)


def left_to_the_command(operation: OperationDescription) -> set[str]:
    """Where a command asks for one part after the other until the end, nobody says which."""
    if operation.in_parts:
        return {"offset", "limit", "version"}
    return {"limit"} if operation.name == "audit.export" else set()


@pytest.mark.parametrize("operation", SERVICE.operations, ids=lambda operation: operation.name)
async def test_every_operation_has_a_command_that_takes_its_fields(operation: OperationDescription) -> None:
    command = command_of(operation)
    async with click.Context(command, info_name=" ".join(operation.words)) as context:
        told = command.get_help(context)
    taken = {parameter.name for parameter in command.params}
    if operation.presentation != "event_stream":
        assert operation.summary.split()[0] in told
        for parameter in operation.parameters:
            by_name = operation.parameter(f"{parameter.name}_id") is not None
            assert parameter.name in taken or by_name or parameter.name in left_to_the_command(operation)
    flags = [flag for parameter in command.params for flag in parameter.opts]
    assert len(flags) == len(set(flags)), "a flag that means two things"


async def test_groups_are_named_and_families_are_numbers() -> None:
    group_ids = described("vm.security_groups").parameter("group_ids")
    assert group_ids is not None
    assert group_ids.names == "/security-groups"
    family = described("security_group.add_rule").parameter("family")
    assert family is not None
    assert option(family).type_cast_value(click.Context(click.Command("x")), "6") == 6


@pytest.mark.parametrize("operation", SERVICE.operations, ids=lambda operation: operation.name)
async def test_a_default_is_one_that_a_person_could_give(operation: OperationDescription) -> None:
    assert [each.name for each in operation.parameters if "Undefined" in (each.default or "")] == []


async def test_only_what_is_changed_can_be_taken_away() -> None:
    emptiable = {
        (operation.name, one.name) for operation in SERVICE.operations for one in operation.parameters if one.emptiable
    }
    assert {("vm.security_groups", "group_ids"), ("plan.traffic", "traffic_gib")} <= emptiable
    assert not {name for name, _ in emptiable if name.endswith((".create", ".list"))}


async def test_what_must_be_given_is_asked_for_before_anything_is_sent(terminal: Terminal) -> None:
    for arguments in (("vm", "create"), ("image", "create", "x"), ("vm", "show"), ("plan", "create")):
        ended = await terminal.svc(*arguments, SVC_URL="https://127.0.0.1:1", SVC_TOKEN="svcvm_x")
        assert ended.code == Exit.INVALID
        assert "Missing" in ended.err


def test_every_error_of_the_api_has_an_exit_code_of_its_own() -> None:
    codes = [EXIT_BY_CODE[code] for code in ErrorCode]
    assert len(set(codes)) == len(ErrorCode)
    assert not {Exit.OK, Exit.FAILED, Exit.TASK_FAILED, Exit.WAIT_TIMED_OUT} & set(codes)


def test_the_description_is_the_same_from_the_cache(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    assert description.service(environment) == SERVICE
    assert (tmp_path / "svc" / "commands.json").exists()
    assert description.service(environment) == SERVICE


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"sources": "other", "operations": []}'])
def test_a_description_that_does_not_fit_is_made_again(tmp_path: Path, damage: str) -> None:
    cached = tmp_path / "svc" / "commands.json"
    cached.parent.mkdir()
    cached.write_text(damage)
    assert description.service({"XDG_CACHE_HOME": str(tmp_path)}) == SERVICE
    assert json.loads(cached.read_text())["operations"]


def test_a_home_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert description.service({"XDG_CACHE_HOME": str(file)}) == SERVICE


def test_a_change_in_any_package_that_a_registry_is_made_of_is_noticed() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]

    packages = {Path(package).name for package in wheel["packages"]}

    assert set(description.PACKAGES) == packages - {"svc_http", "svc_console"}


async def test_help_loads_nothing_of_the_service(terminal: Terminal) -> None:
    """A command line is started often; the controller's models are many."""
    description.service(terminal.variables())
    code = (
        "import sys; from svc.cli.app import run; code = run(['vm', 'create', '--help']);"
        "loaded = {name.partition('.')[0] for name in sys.modules};"
        "assert not loaded & {'pydantic', 'asyncpg', 'quart', 'httpx'}, loaded; raise SystemExit(code)"
    )
    ended = await trio.run_process(
        [sys.executable, "-c", code], env=terminal.variables(), stdout=subprocess.DEVNULL, check=False
    )
    assert ended.returncode == 0


async def test_operations_are_listed_without_a_service(terminal: Terminal) -> None:
    listed = await terminal.ok("ops", "--columns", "operation,command", "--no-header")
    assert len(listed.lines()) == len(SERVICE.operations)
    assert ["vm.create", "svc vm create"] in [line.split(maxsplit=1) for line in listed.lines()]
    document = (await terminal.ok("openapi", "controller")).json
    assert document["openapi"].startswith("3.1")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_completions_are_printed_for_each_shell(terminal: Terminal, shell: str) -> None:
    assert f"_SVC_COMPLETE={shell}_complete" in (await terminal.ok("completion", shell)).out


async def test_words_and_flags_are_completed() -> None:
    completing = ShellComplete(build(SERVICE), {}, "svc", "_SVC_COMPLETE")

    async def words(*before: str, incomplete: str) -> list[str]:
        return [item.value for item in await completing.get_completions(list(before), incomplete)]

    assert "vm" in await words(incomplete="v")
    assert await words("vm", incomplete="force") == ["force-stop"]
    assert "--image" in await words("vm", "create", "x", incomplete="--im")
    assert await words("vm", "create", "x", "--access-mode", incomplete="root_p") == ["root_password"]


async def test_a_name_is_completed_among_more_than_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(url: str, *, params: dict[str, Any], **_: object) -> httpx.Response:
        assert url == "https://controller.test/api/v1/security-groups"
        text, size = params.get("q", ""), params.get("page_size", 50)
        names = [name for name in (f"group-{number:03}" for number in range(300)) if text in name]
        return httpx.Response(200, json={"items": [{"id": name, "name": name} for name in names[:size]]})

    monkeypatch.setattr(httpx, "get", answer)
    monkeypatch.setenv("SVC_URL", "https://controller.test")
    monkeypatch.setenv("SVC_TOKEN", "svcvm_x")
    completing = ShellComplete(build(SERVICE), {}, "svc", "_SVC_COMPLETE")
    found = await completing.get_completions(["security-group", "show"], "group-29")
    assert [item.value for item in found] == [f"group-{number}" for number in range(290, 300)]
