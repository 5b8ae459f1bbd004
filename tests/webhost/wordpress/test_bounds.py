"""What bounds the code of a site that is run for a question about its WordPress."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from svc_webhost.accounts import SiteAccount
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import GroupName, Limits
from svc_webhost.programs import Program
from svc_webhost.wordpress import PhpWordPressSites, WordPressSite, WordPressSource, WordPressTree, sites
from tests.support.panel import RecordedLauncher

_NONE = Limits()
STATE: dict[str, Any] = {
    "version": "6.1",
    "update": None,
    "title": "Blog",
    "language": "en_US",
    "debug": False,
    "maintenance": False,
    "plugins": [],
    "themes": [],
}


class Played:
    """PHP that answers after a while; which commands there were, and how many ran at most at a time."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []
        self.environments: list[Mapping[str, str]] = []
        self.running = self.most = 0

    async def __call__(self, program: Program, take: Callable[[list[str]], Awaitable[None]]) -> int:
        assert program.stdin is not None
        nonce = json.loads(program.stdin.read_text())["nonce"]
        self.commands.append(program.command)
        self.environments.append(program.environment)
        self.running += 1
        self.most = max(self.most, self.running)
        await trio.testing.wait_all_tasks_blocked()
        self.running -= 1
        await take([nonce + json.dumps({"result": STATE})])
        return 0


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    found = Played()
    monkeypatch.setattr(sites, "run_program", found)
    return found


@pytest.fixture
def wordpress(tmp_path: Path) -> PhpWordPressSites:
    folders = HostFolders(tmp_path)
    return PhpWordPressSites(folders, RecordedLauncher(), WordPressTree(WordPressSource(), folders.wordpress))


def blog(number: int = 1001, *, limits: Limits = _NONE, staged: bool = False) -> WordPressSite:
    return WordPressSite(SiteAccount(number), "blog.example", limits, staged)


async def test_it_has_the_memory_and_the_processes_of_the_site(wordpress: PhpWordPressSites, played: Played) -> None:
    await wordpress.look(blog(limits=Limits(memory_mib=256, processes=20)))

    [command] = played.commands
    [entered] = [json.loads(word) for word in command if word.startswith("{")]
    wanted: dict[str, Any] = {"uid": SiteAccount(1001).uid, "processes": 20}
    assert f"--data={256 << 20}:{256 << 20}" in command
    assert {name: entered[name] for name in wanted} == wanted


async def test_what_a_copy_would_mail_is_kept_whatever_it_is_asked(
    wordpress: PhpWordPressSites, played: Played
) -> None:
    await wordpress.look(blog())
    await wordpress.look(blog(staged=True))

    live, copy = [environment["PHP_INI_SCAN_DIR"] for environment in played.environments]
    settings = copy.removeprefix(f"{live}:")
    assert "keep_mail.php" in Path(settings, "mail.ini").read_text()
    [entered] = [json.loads(word) for word in played.commands[1] if word.startswith("{")]
    assert str(Path(settings).parent) in entered["shown"]


async def test_of_one_site_one_question_at_a_time_is_asked(wordpress: PhpWordPressSites, played: Played) -> None:
    async with trio.open_nursery() as nursery:
        for number in (1001, 1001, 1001):
            nursery.start_soon(wordpress.look, blog(number))

    assert (len(played.commands), played.most) == (3, 1)


class _Grouping(RecordedLauncher):
    async def within(self, group: GroupName, limits: Limits | None) -> tuple[str, ...]:
        return ("/in", group, repr(limits))


async def test_it_runs_in_the_group_of_its_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played, limits = Played(), Limits(cpu_percent=50, memory_mib=64, processes=3)
    monkeypatch.setattr(sites, "run_program", played)
    folders = HostFolders(tmp_path)
    asked = PhpWordPressSites(folders, _Grouping(), WordPressTree(WordPressSource(), folders.wordpress))

    await asked.look(WordPressSite(SiteAccount(1001), "example.com", limits, staged=False))

    assert played.commands[0][:3] == ("/in", "site-1001", repr(limits))
