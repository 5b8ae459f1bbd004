"""What every command shares: the choice of service, how results are shown, and whether to wait for a task."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import asyncclick as click

from svc.cli.client import Client
from svc.cli.output import Format, Style
from svc.cli.profiles import Choice, choose

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Session:
    """One command line. Flags given to `svc` itself are the defaults of those given to the command."""

    choice: Choice = field(default_factory=Choice)
    style: Style = field(default_factory=Style)
    wait: bool = False
    wait_timeout: float = math.inf

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with Client.open(choose(self.choice)) as client:
            yield client


_OPTIONS = (
    click.option("--profile", metavar="NAME", help="The profile to use [env: SVC_PROFILE]."),
    click.option("--url", metavar="URL", help="The service to talk to [env: SVC_URL]."),
    click.option("--token", metavar="TOKEN", help="The API token to use [env: SVC_TOKEN]."),
    click.option(
        "--ca",
        "trusted_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="PEM certificate to trust [env: SVC_CA].",
    ),
    click.option(
        "--output", "-o", "format_", type=click.Choice([f.value for f in Format]), help="How to print results."
    ),
    click.option("--columns", metavar="A,B,...", help="The columns of a table; dots reach inside."),
    click.option("--no-header", is_flag=True, help="Print a table without its first line."),
)


def session_options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def narrow(session: Session, given: dict[str, Any]) -> Session:
    """Take the shared options out of `given` and lay them over the session's."""
    choice, style = session.choice, session.style
    changes = {name: given.pop(name) for name in ("profile", "url", "token", "trusted_file")}
    choice = replace(choice, **{name: value for name, value in changes.items() if value is not None})
    format_, columns, no_header = given.pop("format_"), given.pop("columns"), given.pop("no_header")
    if format_ is not None:
        style = replace(style, format=Format(format_))
    if columns is not None:
        style = replace(style, columns=tuple(part.strip() for part in columns.split(",")))
    if no_header:
        style = replace(style, header=False)
    return replace(session, choice=choice, style=style)
