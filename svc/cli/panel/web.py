"""`svc panel web`: TLS, pages, and a relay from browsers to the core. It has no rights of its own and reads no data.

If it is started as root, it switches to its own account after reading only its command line. It refuses to serve as
root: root needs no credential on the core's socket, so every visitor would be an administrator.
"""

from __future__ import annotations

import os
import pwd
import signal
from functools import partial
from pathlib import Path

import asyncclick as click
import structlog
import trio

from svc.cli.failures import Exit, Failure
from svc.cli.services import CORE_SOCKET, PANEL_PORT
from svc.service.supervisor import KeptListener, tell_supervisor

_FOLDER = click.Path(path_type=Path, file_okay=False)

log = structlog.get_logger("svc.panel.web")


@click.command(context_settings={"auto_envvar_prefix": "SVC_PANEL_WEB"})
@click.option("--socket", type=click.Path(path_type=Path), default=CORE_SOCKET, show_default=True, help="The core's.")
@click.option(
    "--tls",
    type=_FOLDER,
    default=Path("/var/lib/svc/panel/web"),
    show_default=True,
    help="Folder of certificate.pem and key.pem, written by the core; shown.pem takes precedence if it exists.",
)
@click.option(
    "--bind",
    default="*",
    show_default=True,
    help="The address to listen on; * and :: are all addresses, of IPv6 too.",
)
@click.option("--port", default=PANEL_PORT, show_default=True)
@click.option("--user", default="svc-web", show_default=True, help="The account to run as, when started by root.")
async def web(socket: Path, tls: Path, bind: str, port: int, user: str) -> None:
    """Serve the panel's pages and API to browsers and programs."""
    _take_on(user)
    from svc_actors.admission import raise_descriptor_limit
    from svc_common.listening import addresses_of
    from svc_http.bridge import Web
    from svc_http.certificates import Certificates, TlsFiles
    from svc_http.logs import configure
    from svc_http.server import serve_tls
    from svc_webhost.folders import SHOWN_CERTIFICATE

    configure()
    raise_descriptor_limit()
    listener = KeptListener(os.environ, "web", of_unit=True)
    app = Web(socket)
    self_signed = TlsFiles(tls / "certificate.pem", tls / "key.pem")
    shown = tls / SHOWN_CERTIFICATE
    certificates = Certificates(self_signed, preferred=TlsFiles(shown, shown))
    stop = trio.Event()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as watching:
            async with trio.open_nursery() as nursery:
                await nursery.start(
                    partial(serve_tls, app, addresses_of(bind, port), certificates, stop.wait, listener=listener)
                )
                watching.start_soon(certificates.watch, _tell)
                tell_supervisor(os.environ, "READY=1")
                log.info("web.started", port=port)
                async for received in signals:
                    tell_supervisor(os.environ, "STOPPING=1")
                    log.info("web.stopping", signal=signal.Signals(received).name)
                    break
                stop.set()
            watching.cancel_scope.cancel()
    await app.aclose()
    log.info("web.stopped")


def _take_on(user: str) -> None:
    """Switch to the account `user`, for good."""
    if os.geteuid() != 0:
        return
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        hint = f"make it: useradd --system --no-create-home --shell /usr/sbin/nologin {user}"
        raise Failure(Exit.INVALID, f"There is no account {user} to run as.", hint) from None
    if account.pw_uid == 0:
        raise Failure(Exit.INVALID, "The web tier does not run as root.", "Name an account without rights with --user.")
    os.setgroups([])
    os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
    os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
    os.environ["HOME"] = "/nonexistent"


async def _tell(problem: str | None) -> None:
    if problem is not None:
        log.warning("web.certificate", problem=problem)
