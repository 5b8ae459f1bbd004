"""The `svc` command: the registry's operations, and the few commands that are more than one call."""

from __future__ import annotations

import json
import math
from typing import Any

import asyncclick as click

from svc.cli import tasks
from svc.cli.accounts import login, profile_group
from svc.cli.console import console
from svc.cli.failures import Exit, Failure
from svc.cli.generated import add_commands
from svc.cli.output import MESSAGES, Format, show
from svc.cli.serve import serve
from svc.cli.session import Session, narrow, session_options
from svc.cli.vnc import vnc
from svc.controller.catalogue import controller_registry
from svc.registry.openapi import document


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="svc")
@session_options
@click.pass_context
async def root(context: click.Context, /, **given: Any) -> None:
    """Virtual machines for hosting providers."""
    context.obj = narrow(Session(), given)


@root.command()
@session_options
@click.pass_obj
async def ops(session: Session, /, **given: Any) -> None:
    """Print the operation registry."""
    session = narrow(session, given)
    rows = [
        {
            "operation": operation.name,
            "method": operation.route.method.value,
            "path": operation.route.path,
            "command": "svc " + " ".join(operation.command.words),
            "access": operation.access.value,
            "scope": operation.scope.value,
            "mutates": operation.mutates,
        }
        for operation in controller_registry()
    ]
    show(rows, session.style)


@root.command("openapi")
@click.argument("service", type=click.Choice(["controller"]))
def openapi(service: str) -> None:
    """Print a service's OpenAPI 3.1 document; no server is asked."""
    click.echo(json.dumps(document(controller_registry()), indent=2, ensure_ascii=False))


@click.command("stream")
@click.option("--after", metavar="POSITION", help="Resume behind this event.")
@session_options
@click.pass_obj
async def events(session: Session, /, after: str | None, **given: Any) -> None:
    """Print what changes, as it changes."""
    session = narrow(session, given)
    async with session.client() as client, client.events(after) as stream:
        async for kind, data in stream:
            if session.style.format is Format.TABLE:
                click.echo(f"{kind:9} {json.dumps(data, ensure_ascii=False)}")
            else:
                click.echo(json.dumps({"kind": kind, "data": data}, ensure_ascii=False))


@click.command("watch")
@click.argument("task")
@click.option("--wait-timeout", type=float, metavar="SECONDS", help="Give up waiting then.")
@session_options
@click.pass_obj
async def watch(session: Session, /, task: str, wait_timeout: float | None, **given: Any) -> None:
    """Follow a task's log to its end."""
    session = narrow(session, given)
    async with session.client() as client:
        ended = await tasks.wait(client, task, timeout=math.inf if wait_timeout is None else wait_timeout)
    show(ended, session.style)


@root.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what your shell needs to complete `svc` commands."""
    source = {
        "bash": 'eval "$(_SVC_COMPLETE=bash_source svc)"',
        "zsh": 'eval "$(_SVC_COMPLETE=zsh_source svc)"',
        "fish": "_SVC_COMPLETE=fish_source svc | source",
    }
    click.echo(source[shell])


def _group(name: str) -> click.Group:
    group = root.commands[name]
    assert isinstance(group, click.Group)
    return group


def build() -> click.Group:
    """The whole command tree."""
    root.add_command(serve)
    root.add_command(login)
    root.add_command(profile_group)
    add_commands(root, controller_registry())
    events_group = click.Group("event", help="What changes, as it changes.")
    events_group.add_command(events)
    root.add_command(events_group)
    _group("vm").add_command(console)
    _group("vm").add_command(vnc)
    _group("task").add_command(watch)
    return root


def main() -> None:
    try:
        build()(_anyio_backend="trio")
    except KeyboardInterrupt:
        MESSAGES.print("interrupted")
        raise SystemExit(130) from None
    except Failure as failure:  # raised before click took over
        failure.show()
        raise SystemExit(failure.exit_code or int(Exit.FAILED)) from None
