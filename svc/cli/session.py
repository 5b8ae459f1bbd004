"""What every command shares: the choice of service, and how results are shown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncclick as click

from svc.cli.description import OperationDescription, Service
from svc.cli.output import Format, Style
from svc.cli.profiles import Choice, choose, exposed
from svc.cli.services import CORE_SOCKET, SOCKET_VARIABLE, ServiceKind
from svc.cli.terminal import say

if TYPE_CHECKING:
    from svc.cli.client import Client


@dataclass(frozen=True)
class Session:
    """The shared options of one command line. Options given to `svc` itself are the defaults of the command's."""

    service: Service
    kind: ServiceKind = ServiceKind.CONTROLLER
    choice: Choice = field(default_factory=Choice)
    style: Style = field(default_factory=Style)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        from svc.cli.client import Client

        environment = self.choice.environment
        given = self.choice.socket or environment.get(SOCKET_VARIABLE)
        choice = replace(self.choice, socket=Path(given) if given else None)
        profile = choose(choice, CORE_SOCKET if self.kind is ServiceKind.PANEL else None)
        open_to_others = exposed(self.choice.environment)
        if open_to_others is not None:
            say(f"svc: {open_to_others} contains API tokens and other users can read it: chmod 600 it", style="yellow")
        async with Client.open(profile) as client:
            yield client

    def listing(self, path: str) -> OperationDescription:
        found = self.service.list_at(path)
        assert found is not None, f"no list at {path}"
        return found


def session_parameters(taken: Collection[str] = ()) -> list[click.Parameter]:
    """The shared options. A shared option whose flag the command uses for itself is left out; it can be given before
    the command's name."""
    options = (
        click.Option(["--profile", "session_profile"], metavar="NAME", help="The profile to use [env: SVC_PROFILE]."),
        click.Option(["--url", "session_url"], metavar="URL", help="The service to talk to [env: SVC_URL]."),
        click.Option(["--token", "session_token"], metavar="TOKEN", help="The API token to use [env: SVC_TOKEN]."),
        click.Option(
            ["--socket", "session_socket"],
            type=click.Path(path_type=Path),
            help="The core of a panel on this server [env: SVC_SOCKET].",
        ),
        click.Option(
            ["--ca", "session_ca"],
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="PEM certificate to trust [env: SVC_CA].",
        ),
        click.Option(
            ["--output", "-o", "session_output"], type=click.Choice([f.value for f in Format]), help="How to print."
        ),
        click.Option(
            ["--columns", "session_columns"], metavar="A,B,...", help="Columns to show; dots name nested fields."
        ),
        click.Option(["--no-header", "session_no_header"], is_flag=True, help="No column titles above a table."),
    )
    return [option for option in options if not set(option.opts) & set(taken)]


def narrow(session: Session, given: dict[str, Any]) -> Session:
    """Remove the shared options from `given`, and return the session with these values in place of its own."""
    choice, style = session.choice, session.style
    changes = {
        "profile": given.pop("session_profile", None),
        "url": given.pop("session_url", None),
        "token": given.pop("session_token", None),
        "trusted_file": given.pop("session_ca", None),
        "socket": given.pop("session_socket", None),
    }
    choice = replace(choice, **{name: value for name, value in changes.items() if value is not None})
    output, columns = given.pop("session_output", None), given.pop("session_columns", None)
    if output is not None:
        style = replace(style, format=Format(output))
    if columns is not None:
        style = replace(style, columns=tuple(part.strip() for part in columns.split(",") if part.strip()))
    if given.pop("session_no_header", False):
        style = replace(style, header=False)
    return replace(session, choice=choice, style=style)
