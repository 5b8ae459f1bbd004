"""A release of a site's application, and the command that runs it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from svc_webhost.accounts import SiteAccount
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import Limits, Service, ServiceName
from svc_webhost.site_logs import site_log
from svc_webhost.site_runtime import service_name, site_service, site_socket

KIND: Final = "app-"
"""The prefix of the names of an application's services, after the site's prefix."""
LOG: Final = "app"
STOP_SECONDS: Final = 30.0
"""How long requests in progress may take when the application is stopped."""
SERVE_PYTHON: Final = Path(__file__).with_name("serve_python.py")
SERVE_NODE: Final = Path(__file__).with_name("serve_node.cjs")


class AppRuntime(StrEnum):
    PYTHON = "python"
    NODE = "node"


class AppInterface(StrEnum):
    """Interface between a Python application and its server. WSGI is served by gunicorn, ASGI by uvicorn, both
    Debian's."""

    WSGI = "wsgi"
    ASGI = "asgi"


@dataclass(frozen=True)
class App:
    """One release: each start of a site's application gets a number of its own. `folder` is below the home; `entry` is
    module:callable, or for node a script below `folder`."""

    account: SiteAccount
    release: int
    domain: str
    runtime: AppRuntime
    interface: AppInterface
    entry: str
    folder: str
    health_path: str
    limits: Limits

    @property
    def name(self) -> ServiceName:
        return service_name(self.account, f"{KIND}{self.release}")


def socket_of(app: App, folders: HostFolders) -> Path:
    return folders.apps / f"{app.account.name}-{app.release}.sock"


def app_log(folders: HostFolders, account: SiteAccount) -> Path:
    return site_log(folders, account, LOG)


def service_of(app: App, folders: HostFolders) -> Service:
    server, program, words = SERVE_NODE, "/usr/bin/node", [app.entry]
    if app.runtime is AppRuntime.PYTHON:
        server, program, words = SERVE_PYTHON, "/usr/bin/python3", [app.interface.value, app.entry]
    home = folders.sites / app.account.name
    variables = variables_file(folders, app.account, app.release)
    return site_service(
        folders,
        app.account,
        f"{KIND}{app.release}",
        (program, str(server), *words),
        environment={"SVC_APP_RUNTIME": app.runtime.value, "SVC_APP_VARIABLES": str(variables)},
        sockets=(site_socket(socket_of(app, folders), "SVC_APP_SOCKET"),),
        limits=app.limits,
        log=LOG,
        folder=home / app.folder,
        # These are shown explicitly, because sites cannot see the folder in which they lie.
        shown=(server, variables),
        stop_seconds=STOP_SECONDS,
    )


# The variables of a release are in a file that only its account can read. The program that serves the application reads
# it at every start, including restarts by the launcher. So no value is in a definition of the launcher, on a command
# line, or in the environment of a process that still runs as root.
def variables_file(folders: HostFolders, account: SiteAccount, release: int) -> Path:
    return folders.apps / f"{account.name}-{release}.variables"


def write_variables(path: Path, account: SiteAccount, values: Mapping[str, str]) -> None:
    """Write the file completely or not at all. The folder is root's, so no account can put a link or another file
    there."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    with os.fdopen(descriptor, "w") as file:
        os.fchown(descriptor, account.uid, account.uid)
        json.dump(dict(values), file)
    os.replace(new, path)
