"""`svc controller support-bundle`: what is needed to help with a controller, in one file without secrets.

It contains names of nodes, machines and projects, and addresses. It contains no people, passwords, tokens or keys:
tables and files that hold them are not read, and the service's log leaves them out. A part that cannot be collected
becomes a line that says why, since bundles are made when something is broken.
"""

from __future__ import annotations

import io
import os
import platform
import shutil
import tarfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import asyncclick as click
import httpx
import trio
from pydantic_core import to_json

from svc.cli.check import findings
from svc.cli.controller_options import CONTEXT, controller_options
from svc.cli.failures import Exit, Failure
from svc.cli.output import size
from svc.cli.terminal import write
from svc.controller.config import ControllerConfig
from svc_actors.store import Database, DatabaseStartError, reachable_urls
from svc_common.errors import ServiceError
from svc_nodeagent.protocol import PROTOCOL_VERSION

UNITS: Final = ("svc-controller", "svc-controller-backup")
LINES: Final = 5000
_MEMORY_LINES: Final = 6
"""The first lines of /proc/meminfo: total, free and available memory, and the kernel's caches."""
_TIMEOUT: Final = 20.0

_QUERIES: Final = {
    "migrations": "SELECT * FROM schema_migration ORDER BY 1",
    "tables": """
        SELECT relname AS table, n_live_tup AS rows, n_dead_tup AS dead, pg_total_relation_size(relid) AS bytes,
               seq_scan AS scans, idx_scan AS index_scans, last_autovacuum
        FROM pg_stat_user_tables ORDER BY bytes DESC""",
    "postgresql": "SELECT name, setting, unit FROM pg_settings WHERE source NOT IN ('default', 'client', 'session')",
    "sessions": """
        SELECT application_name, state, wait_event_type, wait_event, count(*) AS number,
               max(now() - state_change)::text AS longest
        FROM pg_stat_activity WHERE datname = current_database() GROUP BY 1, 2, 3, 4""",
    "nodes": """
        SELECT id, name, state, state_reason, agent_version, mode, maintenance, disk_level, seen_at, facts, capacity,
               preflight
        FROM nodes WHERE deleted_at IS NULL ORDER BY name""",
    "machines": "SELECT status, count(*) AS number FROM vms WHERE deleted_at IS NULL GROUP BY status",
    "alerts": "SELECT key, severity, message, opened_at FROM alerts WHERE closed_at IS NULL ORDER BY opened_at",
    "certificates": """
        SELECT name, directory, names, issuer, not_before, not_after, order_began, due_at, failures,
               last_error, failed_at
        FROM acme_certificates ORDER BY name""",
    "open_tasks": """
        SELECT id, op, status, resource_kind, resource_id, node_id, progress, message, created_at, deadline_at
        FROM tasks WHERE ended_at IS NULL ORDER BY created_at LIMIT 1000""",
    "failed_tasks": """
        SELECT id, op, resource_kind, resource_id, node_id, error_code, error_message, created_at, ended_at
        FROM tasks WHERE status = 'failed' AND ended_at > now() - interval '7 days'
        ORDER BY ended_at DESC LIMIT 1000""",
}


@click.command("support-bundle", context_settings=CONTEXT)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@controller_options
async def support_bundle(config: ControllerConfig, environ: Mapping[str, str], *, file: Path) -> None:
    """Write a tar.gz into FILE for the people who help you: the state of the controller, without secrets.

    Run it on the controller's host as the account that the service runs as. It changes nothing."""
    beginning = f"svc-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Failure(Exit.CONFLICT, f"{file} already exists and was not overwritten.") from None
    except OSError as error:
        raise Failure(Exit.FAILED, f"{file} cannot be written: {error.strerror}") from error
    with os.fdopen(descriptor, "wb") as opened, tarfile.open(fileobj=opened, mode="w:gz") as bundle:
        async for name, content in _parts(config, environ):
            entry = tarfile.TarInfo(f"{beginning}/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
            bundle.addfile(entry, io.BytesIO(content))
            write(f"{size(len(content)):>9}  {name}")
    write(f"{file}: look through it before you send it to somebody; it names nodes, machines and addresses.")


async def _parts(config: ControllerConfig, environ: Mapping[str, str]) -> AsyncIterator[tuple[str, bytes]]:
    yield "about.json", _json(_about(config))
    lines = []
    async with aclosing(findings(config, environ)) as found:
        async for each in found:
            lines.append(f"{each.verdict.value:8} {each.about}: {each.words}\n")
    yield "check.txt", "".join(lines).encode()
    for path in ("healthz", "metrics"):
        yield f"{path}.txt", await _asked(f"http://127.0.0.1:{config.operations_port}/{path}")
    yield "database.json", _json(await _database(config, environ))
    for unit in UNITS:
        yield f"{unit}.log", await _journal(unit)


def _about(config: ControllerConfig) -> dict[str, Any]:
    disk = shutil.disk_usage(next(each for each in (config.data_dir, *config.data_dir.parents) if each.exists()))
    return {
        "release": version("svc"),
        "protocol": PROTOCOL_VERSION,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
        "memory": Path("/proc/meminfo").read_text().splitlines()[:_MEMORY_LINES],
        "disk": {"size": disk.total, "free": disk.free},
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "configuration": {field.name: str(getattr(config, field.name)) for field in fields(config)},
    }


async def _asked(url: str) -> bytes:
    try:
        async with httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False) as http:
            return (await http.get(url)).content
    except httpx.TransportError as error:
        return f"not available: {error}".encode()


async def _database(config: ControllerConfig, environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        with trio.fail_after(_TIMEOUT):
            async with (
                reachable_urls(config.data_dir, environ) as urls,
                Database.open(urls.service, size=1, application_name="svc support") as database,
            ):
                version_ = await database.fetchval("SELECT version()")
                return {"version": version_} | {name: await _rows(database, sql) for name, sql in _QUERIES.items()}
    except (DatabaseStartError, ServiceError, OSError, trio.TooSlowError) as error:
        return {"not available": str(error) or type(error).__name__}


async def _rows(database: Database, sql: str) -> list[dict[str, Any]] | str:
    try:
        return [dict(row) for row in await database.fetch(sql, timeout=_TIMEOUT)]
    except Exception as error:  # noqa: BLE001 - a database unlike what this release knows is what a bundle is for
        return f"not available: {error}"


async def _journal(unit: str) -> bytes:
    """The last log lines of a systemd unit, if there is a journal and this account may read it."""
    program = shutil.which("journalctl")
    if program is None:
        return b"not to be had: there is no journalctl on this machine\n"
    command = [program, "--unit", unit, "--lines", str(LINES), "--output", "cat", "--no-pager"]
    with trio.move_on_after(_TIMEOUT):
        ran = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        return ran.stdout if ran.returncode == 0 else b"not to be had: " + ran.stderr
    return b"not to be had: journalctl did not answer\n"


def _json(value: object) -> bytes:
    return to_json(value, indent=1, fallback=str)
