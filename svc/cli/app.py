"""The `svc` command: the registry's operations, and the few commands that are more than one call."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import asyncclick as click
import trio

from svc.cli import everyday
from svc.cli.audit import export, verify
from svc.cli.description import Service, service
from svc.cli.everyday import diagnose
from svc.cli.failures import Exit, Failure, first_cause
from svc.cli.generated import OperationCommand
from svc.cli.services import CORE_SOCKET, ServiceKind, service_of
from svc.cli.session import Session, narrow, session_parameters
from svc.cli.terminal import say
from svc.cli.work import WorkKind

_HELP = {
    "account": "Customers with a plan: create, suspend, change the plan, terminate.",
    "alert": "Alerts: conditions that need attention.",
    "app": "Applications of sites: set up, start, stop, restart.",
    "audit": "Audit log: who did what.",
    "backup": "Backups of sites: create, restore, schedule, copy elsewhere.",
    "certificate": "TLS certificates.",
    "data": "Readings of the data of backups, which find damage.",
    "database": "Databases of sites.",
    "database-user": "Who may use which database.",
    "dns": "DNS records of sites, and where their names point.",
    "domain": "Domain names of sites.",
    "drill": "Restore drills: restore a backup in isolation and verify it.",
    "event": "Events: changes as they happen.",
    "export": "Exports of databases.",
    "extension": "Extensions of PHP: install, enable, disable.",
    "file": "Files of sites.",
    "files": "Single files of a machine's backup: open, list, download, close.",
    "htaccess": "How .htaccess files are handled, which nginx does not read.",
    "image": "Images that machines are created from.",
    "impersonation": "Support sessions in a customer's account.",
    "import": "Sites of other hosts: upload, plan, apply.",
    "iso": "The CD-ROM drive of a machine: insert, eject.",
    "migration": "Imported sites: compare one with its old host.",
    "job": "Background jobs: list, follow the log, cancel.",
    "licensing": "The edition of the panel, and its licence.",
    "location": "Locations of nodes.",
    "mail": "Mail that the service sends: list, send a test, retry.",
    "member": "Other people who may work in your account.",
    "membership": "The accounts that you are a member of.",
    "network": "Networks of machines, and their address pools.",
    "node": "Compute nodes: join, maintain, remove.",
    "panel": "Releases of the panel itself: check, install.",
    "password": "Your own forgotten password: request a reset link, use it.",
    "person": "The people who have an account, and what they own.",
    "php": "PHP: versions, settings, extensions.",
    "plan": "Plans that are sold: what each allows.",
    "pool": "Addresses.",
    "project": "Projects and their members.",
    "recover": "Disaster recovery: the recovery key, manifests, and recovering a lost server.",
    "schedule": "Scheduled tasks of sites.",
    "second-factor": "Second factor of your account.",
    "security-group": "Security groups: firewall rules of machines.",
    "server": "The programs of this server: their logs.",
    "service": "Services that billing systems sell: order, suspend, unsuspend, terminate.",
    "session": "Signing in and out, as browsers do.",
    "settings": "Settings of the service.",
    "setup": "The first administrator of a new service.",
    "sftp": "Logins of a site: SFTP and shells.",
    "staging": "Staging copies of WordPress sites: create, refresh, push.",
    "site": "Sites: create, change, suspend, delete.",
    "snapshot": "Snapshots of machines: take, restore, delete.",
    "ssh-key": "Public keys for machines.",
    "target": "Where backups of machines go: servers by SFTP, buckets of S3.",
    "task": "Tasks: list, follow, cancel.",
    "token": "API tokens of your own.",
    "volume": "Volumes: additional disks of machines, and retained disks of deleted ones.",
    "update": "Updates of the server's packages and of the panel: check, install, hold.",
    "upload": "Unfinished uploads: list, resume, discard.",
    "user": "Accounts.",
    "vm": "Virtual machines.",
    "webhook": "Signed notifications of events.",
    "wordpress": "WordPress of sites: show, log in, change plugins.",
}
"""The help of the groups whose `Operations` declare none (`Operations(about=...)`). A new area declares its own."""
_ABOUT = {
    ServiceKind.CONTROLLER: "Virtual machines for hosting providers.\n\nSign in once with `svc login "
    "https://HOST:8443`; `svc vm create --help` shows what a machine takes.",
    ServiceKind.PANEL: "Hosted sites on this server.\n\nRoot of the server needs no sign-in. From elsewhere: "
    "`svc login https://HOST:7443`; `svc site create --help` shows what a site takes.",
}
_MEANT = {
    ServiceKind.CONTROLLER: (
        "choose it with `svc --profile NAME ...`; `svc profile list` shows the profiles, and `svc login "
        "https://HOST:8443` creates one"
    ),
    ServiceKind.PANEL: f"on the panel's server: `svc --socket {CORE_SOCKET} ...`, or SVC_SOCKET={CORE_SOCKET}; "
    "elsewhere `svc --profile NAME ...`",
}
_NOT_SHOWN = {"session", "impersonation", "setup"}
"""Groups for browsers and installers. They work and are in `svc ops`, but the help leaves them out: a person who looks
for a command does not need them."""
_PROGRAMS = {"panel", "serve"}
"""Groups whose programs run as long as the service. For them the client commands are not loaded: the modules would stay
in memory, and take as much as the whole web tier."""


class _Root(click.Group):
    """If a command belongs to the other service, the error says which service the line was for and how to choose the
    other."""

    def __init__(self, *given: Any, kind: ServiceKind, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self._kind = kind

    async def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = arguments[0]
        [other] = set(ServiceKind) - {self._kind}
        if word not in self.commands and any(each.words[0] == word for each in service(os.environ, other).operations):
            raise Failure(
                Exit.INVALID,
                f"{word} is a command of a {other}, but this command line is for a {self._kind}",
                _MEANT[other],
            )
        return await super().resolve_command(context, arguments)


def build(known: Service, kind: ServiceKind = ServiceKind.CONTROLLER) -> click.Group:
    """The whole command tree of one service."""
    root = _Root(
        "svc",
        kind=kind,
        callback=_root,
        params=session_parameters(),
        help=_ABOUT[kind],
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": 100,
            "obj": Session(known, kind),
        },
    )
    click.version_option(package_name="svc")(root)
    for operation in known.operations:
        if operation.presentation != "event_stream":
            *groups, _ = operation.words
            command = OperationCommand(operation)
            command.hidden = operation.hidden
            _group(root, groups, operation.about).add_command(command)
    for plain in (everyday.login, everyday.ops, everyday.openapi, everyday.completion):
        root.add_command(plain)
    root.add_command(everyday.profile_group)
    root.add_command(everyday.serve)
    root.add_command(everyday.controller)
    root.add_command(everyday.panel)
    _group(root, ["audit"]).add_command(verify)
    _group(root, ["audit"]).add_command(export)
    if kind is ServiceKind.CONTROLLER:
        _add_controllers_own(root)
    else:
        _group(root, ["file"]).add_command(everyday.upload)
        _group(root, ["import"]).add_command(everyday.import_upload)
        _group(root, ["job"]).add_command(everyday.watching(WorkKind.JOB))
        _group(root, ["site"]).add_command(diagnose)
    return root


def _add_controllers_own(root: click.Group) -> None:
    _group(root, ["event"]).add_command(everyday.stream)
    _group(root, ["vm"]).add_command(everyday.console)
    _group(root, ["vm"]).add_command(everyday.vnc)
    _group(root, ["vm"]).add_command(everyday.groups)
    _group(root, ["task"]).add_command(everyday.watching(WorkKind.TASK))


@click.pass_context
def _root(context: click.Context, /, **given: Any) -> None:
    context.obj = narrow(context.obj, given)


def _group(root: click.Group, words: list[str], about: str | None = None) -> click.Group:
    """The group of these words, created if it does not exist. Its help is `about`, or else what `_HELP` says."""
    group = root
    for word in words:
        found = group.commands.get(word)
        if found is None:
            help_text = about if about is not None and word == words[-1] else _HELP[word]
            found = click.Group(word, help=help_text, hidden=word in _NOT_SHOWN)
            group.add_command(found)
        assert isinstance(found, click.Group), f"{word} is a command and a group"
        group = found
    return group


def main() -> None:
    raise SystemExit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit code."""
    try:
        return trio.run(execute, arguments)
    except KeyboardInterrupt:
        return _ended_by(KeyboardInterrupt())


async def execute(arguments: Sequence[str]) -> int:
    """As `run`, for callers that run in Trio already."""
    try:
        kind = service_of(os.environ, arguments)
        known = Service(()) if _PROGRAMS.intersection(arguments[:1]) else service(os.environ, kind)
        root = build(known, kind)
        code = await root.main(list(arguments), prog_name="svc", standalone_mode=False)
        sys.stdout.flush()
    except trio.Cancelled:
        raise
    except BaseException as error:  # noqa: BLE001 - raised again if the command line has no message for it
        return _ended_by(error)
    return code if isinstance(code, int) else 0


def _ended_by(error: BaseException) -> int:
    """Show the error that ended a command line, and return its exit code."""
    cause = first_cause(error)
    if isinstance(cause, click.ClickException):
        cause.show()
        return cause.exit_code
    if isinstance(cause, click.Abort | KeyboardInterrupt):
        say("svc: interrupted")
        return Exit.INTERRUPTED
    # click turns a broken pipe into an exit of its own.
    if isinstance(cause, BrokenPipeError) or isinstance(cause.__context__, BrokenPipeError):
        # The reader has closed the pipe. The output that Python still buffers is discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.BROKEN_PIPE
    raise error
