"""The commands that are more than one call: signing in, profiles, following tasks and events, consoles, completion.

The modules of a command are loaded when it runs: most command lines use few of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncclick as click

from svc.cli import profiles
from svc.cli.failures import Exit, Failure
from svc.cli.output import Format, columns, show
from svc.cli.parameters import Name
from svc.cli.profiles import ProfileFile, normal_url
from svc.cli.services import ServiceKind, registry_of
from svc.cli.session import Session, narrow, session_parameters
from svc.cli.shapes import shortened
from svc.cli.terminal import say, write, write_json
from svc.cli.work import Work, WorkKind, started_by

_LONGEST_SILENCE = 30.0


def shared(command: click.Command) -> click.Command:
    """Give a command the shared options."""
    command.params.extend(session_parameters({flag for parameter in command.params for flag in parameter.opts}))
    return command


@shared
@click.command()
@click.argument("url")
@click.option("--email", prompt="E-mail", help="Who you are.")
@click.option("--password", metavar="SECRET", help="Prompted for if left out; `-` reads standard input.")
@click.option("--code", metavar="CODE", help="Code of the authenticator, or a recovery code; prompted for when needed.")
@click.option("--name", default="default", show_default=True, help="The profile to write.")
@click.option("--fingerprint", help="SHA-256 of its certificate authority, as the service printed it.")
@click.option("--days", default=90, show_default=True, help="How long the token lasts; 0: for ever.")
@click.pass_obj
async def login(session: Session, /, url: str, **given: Any) -> None:
    """Sign in to a service and remember it as a profile."""
    from svc.cli import accounts

    session = narrow(session, given)
    url, password, fingerprint = normal_url(url), given.pop("password"), given.pop("fingerprint")
    file = session.choice.trusted_file if fingerprint else profiles.trusted_file(session.choice)
    trusted = profiles.certificate(file) if file is not None else await accounts.trust(url, fingerprint)
    if password == "-":  # noqa: S105 - the sign for standard input
        password = click.get_text_stream("stdin").readline().rstrip("\r\n")
    elif password is None:
        password = await click.prompt("Password", hide_input=True, err=True)
    asked = accounts.SignIn(url=url, password=password, trusted=trusted, **given)
    await accounts.login(session.choice.environment, asked)


@click.group("profile")
def profile_group() -> None:
    """Profiles: the services that you have signed in to."""


@profile_group.command("list")
@click.pass_obj
async def list_profiles(session: Session, /, **given: Any) -> None:
    """Show the profiles; the current one is marked."""
    session = narrow(session, given)
    stored = profiles.load(session.choice.environment)
    show([{"name": n, "url": p.url, "current": n == stored.current} for n, p in stored.profiles.items()], session.style)


shared(list_profiles)


@profile_group.command("use")
@click.argument("name")
@click.pass_obj
async def use_profile(session: Session, /, name: str) -> None:
    """Make a profile the current one."""
    stored = _having(session, name)
    profiles.save(session.choice.environment, replace(stored, current=name))


@profile_group.command("remove")
@click.argument("name")
@click.pass_obj
async def remove_profile(session: Session, /, name: str) -> None:
    """Forget a profile. The token itself lives on until it is deleted at the service."""
    stored = _having(session, name)
    left = {known: profile for known, profile in stored.profiles.items() if known != name}
    current = None if stored.current == name else stored.current
    profiles.save(session.choice.environment, ProfileFile(current=current, profiles=left))


def _having(session: Session, name: str) -> ProfileFile:
    stored = profiles.load(session.choice.environment)
    if name not in stored.profiles:
        known = ", ".join(sorted(stored.profiles)) or "none"
        raise Failure(Exit.NOT_FOUND, f"there is no profile {name!r}", f"known profiles: {known}")
    return stored


@shared
@click.command()
@click.pass_obj
async def ops(session: Session, /, **given: Any) -> None:
    """Print the operation registry."""
    session = narrow(session, given)
    rows = [
        {
            "operation": operation.name,
            "method": operation.method,
            "path": operation.path,
            "command": "svc " + " ".join(operation.words),
            "access": operation.access,
            "scope": operation.scope,
            "mutates": operation.mutates,
        }
        for operation in session.service.operations
    ]
    show(rows, session.style)


@click.command()
@click.argument("service", type=click.Choice(["controller", "panel"]))
def openapi(service: str) -> None:
    """Print a service's OpenAPI 3.1 document; no server is asked."""
    from svc.registry.openapi import document

    write_json(document(registry_of(ServiceKind(service))), indent=2)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completions of a shell: source <(svc completion bash)."""
    from asyncclick.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    write(found(context.find_root().command, {}, "svc", "_SVC_COMPLETE").source())


@shared
@click.command("stream")
@click.option("--after", metavar="POSITION", help="Resume after this event.")
@click.pass_obj
async def stream(session: Session, /, after: str | None, **given: Any) -> None:
    """Print what changes, as it changes; a lost connection is resumed where it broke."""
    import trio

    session = narrow(session, given)
    pause, connected = 1.0, False
    async with session.client() as client:
        while True:
            try:
                async with client.events(after) as events:
                    pause, connected = 1.0, True
                    async for kind, data in events:
                        after = str(data.get("id", after or "")) or None
                        _print_event(kind, data, session.style.format)
            except Failure as failure:
                if not connected or failure.exit_code != Exit.UNAVAILABLE:
                    raise
                say(f"svc: {failure.message}; trying again in {pause:g} s", style="yellow")
            await trio.sleep(pause)
            pause = min(pause * 2, _LONGEST_SILENCE)


def _print_event(kind: str, data: Mapping[str, Any], format_: Format) -> None:
    if format_ is Format.TABLE:
        facts = ", ".join(
            f"{name} {value}"
            for name, value in data.get("payload", {}).items()
            if value not in (None, "") and not isinstance(value, dict | list) and not name.endswith("id")
        )
        write(f"{str(data.get('at', ''))[11:19]:8} {kind:9} {data.get('subject') or '-'}  {facts}")
    else:
        write_json({"kind": kind, "data": data})


def watching(kind: WorkKind) -> click.Command:
    """`svc task watch`, `svc job watch`."""

    @shared
    @click.command("watch", help=f"Follow the log of a {kind.noun} to its end.")
    @click.argument("work", metavar=kind.noun.upper())
    @click.option(
        "--wait-timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Stop waiting after this time."
    )
    @click.pass_obj
    async def watch(session: Session, /, work: str, wait_timeout: float | None, **given: Any) -> None:
        from svc.cli import following

        session = narrow(session, given)
        followed = Work(kind, work)
        async with session.client() as client:
            ended = await following.follow(client, followed, timeout=math.inf if wait_timeout is None else wait_timeout)
        show(shortened(ended) if session.style.for_reading else ended, session.style)
        following.check(followed, ended)

    return watch


@shared
@click.command()
@click.argument("name", type=Name("/vms"))
@click.pass_obj
async def console(session: Session, /, name: str, **given: Any) -> None:
    """Open a machine's serial console. Ctrl-] leaves."""
    from svc.cli.console import console as run

    await run(narrow(session, given), name)


@shared
@click.command()
@click.argument("name", type=Name("/vms"))
@click.option("--port", default=0, help="The port on 127.0.0.1; 0 takes a free one.")
@click.pass_obj
async def vnc(session: Session, /, name: str, port: int, **given: Any) -> None:
    """Offer a machine's screen to a VNC viewer on this computer, until interrupted."""
    from svc.cli.vnc import vnc as run

    await run(narrow(session, given), name, port)


@shared
@click.command("groups")
@click.argument("name", type=Name("/vms"))
@click.argument("groups", nargs=-1, type=Name("/security-groups"), metavar="[GROUP]...")
@click.option(
    "--none", is_flag=True, help="Remove the machine from all security groups; its traffic is then not filtered."
)
@click.pass_obj
async def groups(session: Session, /, name: str, groups: tuple[str, ...], none: bool, **given: Any) -> None:
    """Put a machine into security groups, in place of those it is in; without any, show those it is in."""
    from svc.cli.naming import resolve

    if none and groups:
        raise click.UsageError("--none removes all groups: give either group names or --none")
    session = narrow(session, given)
    async with session.client() as client:
        path = f"/vms/{await resolve(client, session.listing('/vms'), name)}"
        if groups or none:
            listing = session.listing("/security-groups")
            body = {"group_ids": [await resolve(client, listing, group) for group in groups]}
            answer = await client.call("PUT", f"{path}/security-groups", body=body)
        else:
            answer = await client.call("GET", f"{path}/networking")
    show(answer["groups"], session.style, columns=columns(("name", "id")))


@shared
@click.command("upload")
@click.argument("site", type=Name("/sites"))
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("path")
@click.option("--replace", is_flag=True, help="Replace an existing file.")
@click.pass_obj
async def upload(session: Session, /, site: str, file: Path, path: str, replace: bool, **given: Any) -> None:
    """Send a file of this computer to a site: to PATH there, or into that folder where it ends in a slash."""
    from svc.cli.naming import resolve
    from svc.cli.uploading import upload as run

    session = narrow(session, given)
    async with session.client() as client:
        site_id = await resolve(client, session.listing("/sites"), site)
        answer = await run(client, site_id, file, path, replace=replace)
    if not session.style.for_reading:
        show(answer, session.style)


@shared
@click.command("upload")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--owner-email", metavar="ADDRESS", help="Owner of the sites; required from administrators.")
@click.pass_obj
async def import_upload(session: Session, /, file: Path, owner_email: str | None, **given: Any) -> None:
    """Send an archive of another host, to be read and planned: `svc import show` then says what is in it."""
    from svc.cli.uploading import upload_archive

    session = narrow(session, given)
    async with session.client() as client:
        answer = await upload_archive(client, file, owner_email)
    show(answer, session.style, columns=columns(("name", "status", "size", "job=job_id", "id")))


class LateGroup(click.Group):
    """A group that loads its commands when one of them is needed."""

    def __init__(self, name: str, help_text: str, load: Callable[[], click.Group]) -> None:
        super().__init__(name, help=help_text)
        self._load = load

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self._load().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._load().get_command(ctx, cmd_name)


def _serve() -> click.Group:
    from svc.cli.serve import serve

    return serve


serve = LateGroup("serve", "Run a service.", _serve)


def _controller() -> click.Group:
    from svc.cli.controller_group import controller

    return controller


controller = LateGroup("controller", "Maintain the controller of this machine.", _controller)


def _panel() -> click.Group:
    from svc.cli.panel.commands import panel

    return panel


panel = LateGroup("panel", "Run the hosting panel of this server.", _panel)


@shared
@click.command("diagnose")
@click.argument("site", type=Name("/sites"))
@click.option("--repair", metavar="REPAIR", help="Repair to run first, as named by a diagnosis.")
@click.pass_obj
async def diagnose(session: Session, /, site: str, repair: str | None, **given: Any) -> None:
    """Diagnose a site: what is wrong, how it shows, and which repair helps."""
    from svc.cli.following import check, follow
    from svc.cli.naming import resolve

    session = narrow(session, given)
    work = ended = None
    async with session.client() as client:
        path = f"/sites/{await resolve(client, session.listing('/sites'), site)}"
        if repair is not None:
            work = started_by(await client.call("POST", f"{path}/repair", body={"repair": repair}))
            assert work is not None, "a repair is a job"
            ended = await follow(client, work)
        answer = await client.call("GET", f"{path}/diagnose")
    show(answer, session.style)
    if work is not None and ended is not None:
        check(work, ended)
