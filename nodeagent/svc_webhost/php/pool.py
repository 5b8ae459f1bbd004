"""PHP of one site: a php-fpm master of its own, defined by its pool. Pure functions.

A pool with another definition is another service with another socket: both run next to each other until the web server
has switched to the new one, and the old one is untouched if the new one does not answer. So the names derive from the
definition (`Pool.mark`): the same record always leads to the same service.
"""

from __future__ import annotations

import hashlib
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from svc_webhost.accounts import SiteAccount
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import Limits, Service, ServiceName
from svc_webhost.php.kept_mail import directives
from svc_webhost.php.settings import MOST_EXECUTION_SECONDS, ErrorReporting, PhpSettings
from svc_webhost.site_logs import site_log
from svc_webhost.site_runtime import service_name, site_environment, site_service, site_socket

KIND: Final = "php-"
"""The prefix of the services of all pools of a site, after the site's own prefix."""
PING: Final = "/svc-ping"
"""Visitors cannot reach this path: the web server passes on only paths of files that end in .php."""
LOG: Final = "php"
_DRAIN_SECONDS: Final = 60
"""How long open requests may take when their master is stopped."""
_FORM_MIB: Final = 8
"""The size of a form in addition to its files."""

_ALL, _NOTICE, _USER_NOTICE, _STRICT, _DEPRECATED, _USER_DEPRECATED = 32767, 8, 1024, 2048, 8192, 16384
_WITHOUT_DEPRECATED: Final = _ALL & ~(_STRICT | _DEPRECATED | _USER_DEPRECATED)
# E_ERROR, E_PARSE, E_CORE_ERROR, E_COMPILE_ERROR, E_USER_ERROR, E_RECOVERABLE_ERROR.
_FATAL: Final = 1 | 4 | 16 | 64 | 256 | 4096
_REPORTED: Final = {
    ErrorReporting.ALL: _ALL,
    ErrorReporting.WITHOUT_DEPRECATED: _WITHOUT_DEPRECATED,
    ErrorReporting.WITHOUT_NOTICES: _WITHOUT_DEPRECATED & ~(_NOTICE | _USER_NOTICE),
    ErrorReporting.FATAL: _FATAL,
}
"""As numbers, because php-fpm does not know PHP's names for them (E_ALL would be 0)."""


@dataclass(frozen=True)
class Pool:
    account: SiteAccount
    version: str
    settings: PhpSettings = field(default_factory=PhpSettings)
    limits: Limits = field(default_factory=Limits)
    restarts: int = 0
    """If this is incremented, the same definition results in another pool."""
    staged: bool = False
    """Whether this is for a staging copy: its mail is kept in the site, and WordPress knows that it is a copy."""
    worker_rest_seconds: int = 30
    """A worker ends if it gets no request for this long."""

    @property
    def mark(self) -> str:
        """Identifies this definition."""
        # The digest leaves out the limits, because these belong to the site and can change while the pool runs.
        text = "\n".join((*_lines(self, "", Path("/"), Path("/")), self.version, str(self.restarts)))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def service_name(self) -> ServiceName:
        return service_name(self.account, f"{KIND}{self.mark}")


_NAME: Final = re.compile(rf"site-([0-9]+)-{KIND}[0-9a-f]{{12}}")


def number_of(name: ServiceName) -> int | None:
    """The number of the site whose PHP the service is; None: it is another kind of service."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match.group(1))


def program(version: str) -> Path:
    return Path(f"/usr/sbin/php-fpm{version}")


def socket_of(pool: Pool, folders: HostFolders) -> Path:
    return folders.php_sockets / f"{pool.account.name}-{pool.mark}.sock"


def configuration_of(pool: Pool, folders: HostFolders) -> Path:
    return folders.php / pool.account.name / f"{pool.mark}.conf"


def log_of(account: SiteAccount, folders: HostFolders) -> Path:
    return site_log(folders, account, LOG)


def render_pool(pool: Pool, folders: HostFolders) -> str:
    """The configuration of the master."""
    home, shown = folders.sites / pool.account.name, configuration_of(pool, folders).parent
    return "\n".join(_lines(pool, str(socket_of(pool, folders)), home, shown)) + "\n"


def pool_service(pool: Pool, folders: HostFolders) -> Service:
    socket, configuration = socket_of(pool, folders), configuration_of(pool, folders)
    # -O: the master logs to its standard error, which leads to the site's log, because it could not open that file
    # itself.
    command = (str(program(pool.version)), "-F", "-O", "-y", str(configuration))
    return site_service(
        folders,
        pool.account,
        f"{KIND}{pool.mark}",
        command,
        environment=site_environment(folders, pool.account),
        sockets=(site_socket(socket, "FPM_SOCKETS", f"{socket}={{descriptor}}"),),
        limits=pool.limits,
        log=LOG,
        shown=(configuration.parent,),
        # At SIGQUIT php-fpm finishes open requests before it ends.
        stop_signal=signal.SIGQUIT,
        stop_seconds=_DRAIN_SECONDS + 5.0,
        on_demand=True,
    )


def _lines(pool: Pool, socket: str, home: Path, shown: Path) -> Iterator[str]:
    settings = pool.settings
    yield "[global]"
    # php-fpm opens this log in any case, but does not use it.
    yield "error_log = /dev/null"
    yield "log_limit = 8192"
    yield "log_level = warning"
    yield f"process_control_timeout = {_DRAIN_SECONDS}s"
    yield f"[{pool.account.name}]"
    yield f"listen = {socket}"
    # Without visitors a site has no process except its master.
    yield "pm = ondemand"
    yield f"pm.max_children = {_workers(pool)}"
    yield f"pm.process_idle_timeout = {pool.worker_rest_seconds}s"
    yield "pm.max_requests = 1000"
    # While a request waits it uses no processor time, so max_execution_time does not end it; this does.
    yield f"request_terminate_timeout = {MOST_EXECUTION_SECONDS + 10}s"
    yield f"ping.path = {PING}"
    yield f"ping.response = {pool.account.name}"
    yield "security.limit_extensions = .php"
    yield "catch_workers_output = yes"
    yield "decorate_workers_output = no"
    yield "clear_env = yes"
    for name in ("PATH", "HOME", "USER", "TMPDIR", "LANG", "MYSQL_HOME", "MYSQL_UNIX_PORT", "PGHOST"):
        yield f"env[{name}] = ${name}"
    for name in ("sys_temp_dir", "upload_tmp_dir", "session.save_path"):
        yield f'php_value[{name}] = "{home / "tmp"}"'
    # Debian removes old sessions with a cron job, but only in its own folder.
    yield "php_value[session.gc_probability] = 1"
    yield "php_admin_flag[log_errors] = on"
    yield 'php_admin_value[error_log] = "/proc/self/fd/2"'
    yield f"php_value[memory_limit] = {settings.memory_limit_mib}M"
    yield f"php_value[upload_max_filesize] = {settings.upload_max_filesize_mib}M"
    yield f"php_value[post_max_size] = {settings.upload_max_filesize_mib + _FORM_MIB}M"
    yield f"php_value[max_execution_time] = {settings.max_execution_time}"
    yield f"php_value[max_input_vars] = {settings.max_input_vars}"
    yield f"php_flag[display_errors] = {'on' if settings.display_errors else 'off'}"
    yield f"php_value[error_reporting] = {_REPORTED[settings.error_reporting]}"
    yield f'php_value[date.timezone] = "{settings.timezone}"'
    if pool.staged:
        yield "env[WP_ENVIRONMENT_TYPE] = staging"
        for name, value in directives(shown).items():
            yield f'php_admin_value[{name}] = "{value}"'


def _workers(pool: Pool) -> int:
    """The number of workers: together with the master, and a few processes that a request may start, they stay within
    the site's limit of processes."""
    processes = pool.limits.processes
    return pool.settings.workers if processes is None else max(1, min(pool.settings.workers, processes - 3))
