"""Point-in-time recovery of a PostgreSQL of one's own, with the settings and commands of docs/backup.md."""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from svc_actors.store import CommitMarks, Database, DatabaseUrls, prepare_schema
from svc_actors.store.embedded import PROGRAMS
from svc_actors.store.marks import FILE
from svc_actors.store.reach import server_account
from tests.cli.conftest import Terminal

PAGE = Path(__file__).parents[4] / "docs" / "backup.md"
ACCOUNT = server_account()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="svc-pitr-") as path:
        for place in (Path(path), Path(path, "wal")):
            place.mkdir(exist_ok=True)
            place.chmod(0o700)
            if ACCOUNT is not None:
                shutil.chown(place, ACCOUNT.uid, ACCOUNT.gid)
        yield Path(path)


class Server:
    """A PostgreSQL that an operator runs, as the page says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.page = PAGE.read_text().replace("/srv/wal", str(folder / "wal")).replace("/srv/base", str(folder / "base"))
        self.url = f"postgresql://postgres@/postgres?host={folder}"

    def settings(self, *names: str) -> list[str]:
        return [line for name in names for line in re.findall(rf"^    ({name} = .*)$", self.page, re.MULTILINE)]

    def configure(self, data: Path, lines: list[str]) -> None:
        with (data / "postgresql.conf").open("a") as file:
            file.write("\n".join(["", *lines, ""]))

    async def run(self, program: str, *arguments: str) -> None:
        await trio.run_process(
            [str(PROGRAMS / program), *arguments],
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PGHOST": str(self.folder), "PGUSER": "postgres"},
            user=ACCOUNT.uid if ACCOUNT else None,
            group=ACCOUNT.gid if ACCOUNT else None,
            extra_groups=[] if ACCOUNT else None,
            capture_stdout=True,
        )

    async def start(self, data: Path) -> None:
        await self.run("pg_ctl", "-D", str(data), "-w", "-l", str(self.folder / "log"), "start")

    async def stop(self, data: Path) -> None:
        await self.run("pg_ctl", "-D", str(data), "-w", "-m", "fast", "stop")


async def test_a_moment_between_two_changes_is_brought_back_and_hosts_are_compared_then(
    folder: Path, tmp_path: Path
) -> None:
    server, first, base = Server(folder), folder / "first", folder / "base"
    await server.run("initdb", "-D", str(first), "-U", "postgres", "--auth=trust")
    place = ["listen_addresses = ''", f"unix_socket_directories = '{folder}'"]
    server.configure(first, place + server.settings("archive_mode", "archive_command"))
    [base_backup] = re.findall(r"`pg_basebackup (.*?)`", server.page)
    await server.start(first)
    try:
        await prepare_schema(DatabaseUrls(server.url, server.url))
        await server.run("pg_basebackup", *shlex.split(base_backup))
        async with Database.open(server.url, size=1) as database:
            await database.execute("INSERT INTO locations (name) VALUES ('before')")
            moment = await database.fetchval("SELECT clock_timestamp()")
            await database.execute("INSERT INTO locations (name) VALUES ('after')")
            await database.fetchval("SELECT pg_switch_wal()::text")
    finally:
        await server.stop(first)
    recovery = server.settings("restore_command", "recovery_target_action")
    server.configure(base, [*recovery, f"recovery_target_time = '{moment.isoformat()}'"])
    (base / "recovery.signal").touch()

    await server.start(base)
    try:
        async with Database.open(server.url, size=1) as database:
            with trio.fail_after(30):
                while await database.fetchval("SELECT pg_is_in_recovery()"):
                    await trio.sleep(0.05)  # the server promotes itself
            names = {row["name"] for row in await database.fetch("SELECT name FROM locations")}
        marks = CommitMarks.load(tmp_path / "data")
        marks.committed(marks.draw())
        marks.note_key(("token:1", "order-7"))
        (tmp_path / "data").mkdir()
        await marks.write()
        async with Database.open(server.url, size=1) as database:
            await database.execute("INSERT INTO commit_marks SELECT gen_random_uuid(), -1, 0, now()")
        command = ("controller", "rewound", "--as-of", f"{moment:%Y-%m-%dT%H:%M:%S}", "--data", str(tmp_path / "data"))
        done = await Terminal(tmp_path).ok(*command, SVC_DATABASE_URL=server.url)
        async with Database.open(server.url, size=1) as database:
            marked = await database.fetchval("SELECT count(*) FROM restorations")
            noticed = await database.fetchval("SELECT EXISTS (SELECT FROM commit_marks WHERE slot = -1)")
            refused = await database.fetchval("SELECT fingerprint FROM idempotency_keys WHERE key = 'order-7'")
    finally:
        await server.stop(base)

    assert names == {"before"}
    assert "Sessions ended: 0" in done.out
    assert marked == 1
    assert not noticed
    assert refused == b"", "the order may have been carried out since"
    assert not (tmp_path / "data" / FILE).exists(), "the next start takes no second step back"
