"""Which programs the panel runs, seen by the kernel: never a shell, and never one that a request named."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.support.panel_programs import PanelPrograms, open_panel_programs

pytestmark = [pytest.mark.system, pytest.mark.isolated]

SHELLS = {"ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "mksh", "rbash", "sh", "tcsh", "zsh"}
HOSTILE = "x$(touch owned);touch owned|`touch owned`"
"""A name that a file may have, and that a shell would act on."""
INITDB = re.compile(r'\["sh", "-c", "(locale -a|\\"\S+/postgres\\" (-V|--boot|--check|--single)(?:[^|;&$`]|>&)*)"\]')
"""What initdb has a shell do, when a cluster is made: PostgreSQL's own words, none of them from a request."""
_EXECUTED = re.compile(r'execve(?:at)?\((?:AT_FDCWD, )?"(?P<program>(?:[^"\\]|\\.)*)", (?P<arguments>\[.*\]), ')


@dataclass(frozen=True)
class Execution:
    program: str
    arguments: str

    @property
    def name(self) -> str:
        return Path(self.program).name


def executions(trace: Path) -> list[Execution]:
    """What was executed, attempts that failed included (a search along PATH, say)."""
    found = (_EXECUTED.search(line) for line in trace.read_text().splitlines())
    return [Execution(each["program"], each["arguments"]) for each in found if each]


@pytest.fixture
async def traced(tmp_path: Path) -> AsyncIterator[tuple[PanelPrograms, Path]]:
    """A panel whose core is traced, with all that it starts, and the trace."""
    trace = tmp_path / "executed"
    # -D: the core stays this process's child. Lines whole, so that arguments are seen to their end.
    strace = (
        "strace",
        "-D",
        "-f",
        "-qq",
        "--seccomp-bpf",
        "-s",
        "4096",
        "-e",
        "trace=execve,execveat",
        "-o",
        str(trace),
    )
    async with open_panel_programs(tracer=strace) as programs:
        await programs.start()
        await programs.customer()
        yield programs, trace


async def done(client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = await client.request(method, path, json=body)
    assert answer.status_code < 300, f"{method} {path}: {answer.text}"
    told: dict[str, Any] = answer.json()
    if "steps" in told:
        with trio.fail_after(120):
            while told["status"] in ("queued", "running"):
                told = (await client.get(f"/jobs/{told['id']}")).json()
                await trio.sleep(0.1)  # A job is the work of other processes.
        assert told["status"] == "succeeded", json.dumps(told)
    return told


async def test_no_shell_and_nothing_that_a_request_named_is_ever_executed(
    traced: tuple[PanelPrograms, Path],
) -> None:
    panel, trace = traced

    site = await panel.site("shop.example.com", aliases=["www.shop.example.com"])
    at = f"/sites/{site['id']}"
    async with panel.client() as root:
        await done(root, "POST", f"{at}/domains", {"name": "shop.example.org"})
        await done(root, "POST", f"{at}/redirects", {"path": "/old", "target": "https://example.net/"})
        await done(root, "POST", f"{at}/dns/point", {})
        await done(root, "POST", f"{at}/dns/records", {"name": "note", "data": {"type": "TXT", "text": HOSTILE}})
        await done(root, "POST", f"{at}/files/mkdir", {"path": f"public/{HOSTILE}"})
        await done(root, "PUT", f"{at}/files/content", {"path": f"public/{HOSTILE}/page", "content": HOSTILE})
        packed = {"paths": [f"public/{HOSTILE}"], "to": f"public/{HOSTILE}.zip"}
        await done(root, "POST", f"{at}/files/compress", packed)
        await done(root, "POST", f"{at}/files/extract", {"path": f"public/{HOSTILE}.zip", "to": "public/again"})
        await done(root, "POST", f"{at}/suspend", {"suspended": True, "reason": HOSTILE})
        await done(root, "POST", f"{at}/suspend", {"suspended": False})
        await done(root, "DELETE", at, {"confirm": "shop.example.com"})
    await panel.stop()

    executed = executions(trace)
    assert {"nginx", "knotd"} <= {each.name for each in executed}  # The trace saw what the keeper starts.
    assert [each for each in executed if each.name in SHELLS and not INITDB.fullmatch(each.arguments)] == []
    assert [each for each in executed if "touch owned" in each.arguments or "touch owned" in each.program] == []
    assert [each for each in executed if not each.program.startswith("/")] == []
