"""Every `svc` command that README.md or a page of docs/ tells somebody to type is one that there is."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import asyncclick as click
import pytest

from svc.cli.app import build
from svc.cli.description import service
from svc.cli.services import ServiceKind

_ROOT = Path(__file__).parents[2]
_PAGES = [_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))]
_PUT_IN = "https://example.com"
"""For what the shell puts in: whatever the argument is, also an address."""
_ENDS = {"|", "<", ">", ">>", "&&", ";", "#"}
"""Words of a shell's line that its command ends before."""


@dataclass(frozen=True)
class Written:
    """A command in a page. `whole`: a line to be typed as it stands, rather than one within a sentence, which may leave
    its arguments out."""

    page: str
    line: int
    text: str
    whole: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def written(page: Path) -> Iterator[Written]:
    lines = iter(enumerate(page.read_text().splitlines(), 1))
    for number, line in lines:
        if begin := re.match(r" {4}(\S*/|.* -- )?svc (?=[a-z-])", line):
            text = line[begin.end() :]
            while text.endswith("\\"):
                text = text.removesuffix("\\") + next(lines)[1]
            yield Written(page.name, number, text, whole=True)
        for text in re.findall(r"`svc ([^`]+)`", line):
            for each in alternatives(text):
                yield Written(page.name, number, each, whole=False)


def alternatives(text: str) -> Iterator[str]:
    """`member list|update` as the two commands that it stands for; what may be left out is given."""
    words = [word.split("|") for word in text.replace("[", "").replace("]", "").split(" ")]
    return map(" ".join, itertools.product(*words))


def arguments_of(text: str) -> list[str]:
    """What a shell would give the command."""
    words = shlex.split(re.sub(r"\$(\([^)]*\)|[A-Z_]+)", _PUT_IN, text), comments=True)
    words = list(itertools.takewhile(lambda word: word not in _ENDS and not word.startswith("</"), words))
    return words[: words.index("...")] if "..." in words else words


@cache
def commands(kind: ServiceKind) -> click.Group:
    return build(service(os.environ, kind), kind)


async def problem(wanted: Written, kind: ServiceKind) -> str | None:
    """Why this service's `svc` would not take the line."""
    command: click.Command = commands(kind)
    context = click.Context(command, info_name="svc")
    words = arguments_of(wanted.text)
    try:
        while isinstance(command, click.Group):
            _, words, _ = await command.make_parser(context).parse_args(words)
            if not words:
                return "is a group of commands" if wanted.whole else None
            name, *words = words
            if (found := command.get_command(context, name)) is None:
                return f"there is no {name}"
            command, context = found, click.Context(command, info_name=name, parent=context)
        await command.make_context(command.name, words, parent=context)
    except (click.BadParameter, click.BadOptionUsage) as error:
        # Within a sentence an argument may be left out, or stand for what somebody has; a file is on their machine.
        return error.format_message() if wanted.whole and not error.message.endswith("does not exist.") else None
    except click.UsageError as error:
        return error.format_message()
    return None


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
async def test_the_commands_of_a_page_are_taken(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click.termui, "visible_prompt_func", lambda text: "typed")
    wrong = {}
    for each in written(page):
        problems = [await problem(each, kind) for kind in ServiceKind]
        if None not in problems:
            wrong[str(each)] = problems

    assert wrong == {}, wrong


def test_commands_are_found_in_the_pages() -> None:
    found = [each for page in _PAGES for each in written(page)]

    assert sum(each.whole for each in found) > 80
    assert sum(not each.whole for each in found) > 150


@pytest.mark.parametrize(
    "text", ["vm creat web-1", "vm show web-1 --nothing", "vm show", "vm show web-1 web-2", "vm attach-ip web-1 --pool"]
)
async def test_a_command_that_there_is_not_is_found(text: str) -> None:
    assert await problem(Written("page", 1, text, whole=True), ServiceKind.CONTROLLER) is not None
