"""A controller lost and restored from its backup, with hosts that went on meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
import trio

from svc.cli.failures import Exit
from svc.controller import certificate
from svc.controller.config import ControllerConfig
from svc.service.controller.backup.restore import UNFINISHED
from svc.service.controller.compose import open_controller
from svc_actors.acme import Http01
from svc_actors.certificates import (
    AcmeSettings,
    CertificateWithKey,
    IssuedCertificate,
    IssuingServices,
    Keeper,
    read_certificate,
)
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import Database, DatabaseStartError, reachable_urls
from svc_actors.store.embedded import PROGRAMS
from svc_actors.store.server_folder import Folder
from tests.cli.conftest import House, Terminal, opened_house
from tests.support.acme_authority import DIRECTORY, FakeAuthority
from tests.support.configuration import local_config
from tests.support.lost_controller import PASSPHRASE, opened_world
from tests.support.postgres_server import cut_power


async def test_what_hosts_did_since_the_backup_is_neither_doubled_nor_lost(folder: Path) -> None:
    """Twenty machines: fifteen in the backup, of which three are deleted since, one has another address and one is shut
    down; and five that were made since."""
    config, kept = local_config(folder / "controller"), folder / "kept"
    kept.mkdir()
    old, new = [f"old-{number:02}" for number in range(15)], [f"new-{number}" for number in range(5)]
    async with trio.open_nursery() as nursery:
        with structlog.testing.capture_logs():
            async with opened_world(config, folder, nursery) as world:
                house = world.house
                await world.create(old)
                await house.ok("controller", "backup", "--to", str(kept))
                await world.create(new)
                for name in old[:3]:
                    await house.ok("vm", "delete", name, "--destroy-disks", "--yes", "--wait")
                await house.ok("vm", "attach-ip", old[13])
                await house.ok("vm", "shutdown", old[14], "--wait")
                await world.until(lambda: world.carries(18))
                truth, carried = world.machines(), world.carried()

            [archive] = kept.iterdir()
            restored = replace(config, data_dir=folder / "second")
            house.environment["SVC_CONTROLLER_DATA"] = str(restored.data_dir)
            done = await house.ok("controller", "restore", str(archive))
            async with open_controller(restored, {}):
                await world.until(lambda: world.compared(9))
                dealt = await dealt_with(restored)
                orphans = await world.json("node", "orphans")
                untouched = world.machines() == truth, world.carried() == carried
                await world.create(["fresh"])
                for name in old[:3]:
                    await house.ok("node", "discard", name, "--yes")
                for name in new:
                    await house.ok("node", "adopt", name, "--project", "default")
                await house.ok("node", "adopt", old[13])
                await world.until(lambda: world.compared(0))
                await world.until(world.agrees)
                records, addresses = await world.records(), await world.allocated(restored)
                hosts, carried_now = world.machines(), world.carried()
        nursery.cancel_scope.cancel()

    assert "Sessions ended" in done.out
    assert {(each["name"], each["kind"]) for each in orphans} == {
        *((name, "unknown") for name in new),
        *((name, "missing") for name in old[:3]),
        (old[13], "differing"),
    }
    assert dealt == 1, "data folders of before, and a notice in the backup, call for nothing further"
    assert untouched == (True, True), "nothing was made, removed or changed by itself"
    assert sorted(vm["name"] for vm in records.values()) == sorted([*old[3:], *new, "fresh"])
    assert records.keys() == hosts.keys(), "none is doubled, and none lost"
    assert addresses == carried_now
    assert len({address for address, _ in carried_now}) == len(carried_now) == 19
    assert truth.items() <= hosts.items()
    [stopped] = [vm for vm in records.values() if vm["status"] == "stopped"]
    assert stopped["name"] == old[14]


async def dealt_with(config: ControllerConfig) -> int:
    """How often a step back of its database was dealt with."""
    async with reachable_urls(config.data_dir, {}) as urls, Database.open(urls.service, size=1) as database:
        return int(await database.fetchval("SELECT coalesce(max(value), 0) FROM commit_marks WHERE slot = -2"))


async def test_a_certificate_by_acme_is_shown_again_without_a_question_to_the_authority(folder: Path) -> None:
    """Nobody answers at its address, and a restored controller must not use up what an authority gives out a week."""
    config, kept = local_config(folder / "controller", public_host="localhost"), folder / "kept"
    acme = AcmeSettings("ops@provider.example", ("localhost",), terms_agreed=True, directory=DIRECTORY, port=0)
    kept.mkdir()
    with structlog.testing.capture_logs():
        async with opened_house(config, {}, folder) as house:
            house.environment["SVC_BACKUP_PASSPHRASE"] = PASSPHRASE
            issued = await certificate_from_an_authority(config, acme)
            await house.ok("controller", "backup", "--data", str(config.data_dir), "--to", str(kept))
        shutil.rmtree(config.data_dir)
        [archive] = kept.iterdir()

        restored = replace(config, data_dir=folder / "second", acme=acme)
        await house.ok("controller", "restore", str(archive), "--data", str(restored.data_dir))
        async with open_controller(restored, {}) as running:
            shown = await trio.to_thread.run_sync(ssl.get_server_certificate, ("localhost", config.api_port))
            record = await read_certificate(running.services.database, certificate.NAME)

    assert issued.chain.startswith(shown)
    assert record is not None
    assert (record.failures, record.ordering) == (0, False)


async def certificate_from_an_authority(config: ControllerConfig, acme: AcmeSettings) -> CertificateWithKey:
    """Recorded in the database of a controller that runs, as its own keeper would have done."""
    shown: list[CertificateWithKey] = []

    async def install(issued: CertificateWithKey) -> None:
        shown.append(issued)

    async with (
        reachable_urls(config.data_dir, {}) as urls,
        Database.open(urls.owner, size=2) as database,
        ActorSystem.open() as actors,
    ):
        issuing = IssuingServices(database, Sealer.from_file(config.data_dir / "secret.key"))
        actors.register(IssuedCertificate, lambda _: IssuedCertificate(issuing))
        open_http = FakeAuthority().client
        keeper = Keeper(actors, certificate.NAME, acme.names, acme, Http01(), install, open_http=open_http)
        await keeper.install_current()
        while not shown:
            await keeper.attempt()
    return shown[0]


async def test_a_folder_that_is_in_use_and_an_archive_that_is_damaged_are_refused(folder: Path) -> None:
    terminal = Terminal(folder, {"SVC_BACKUP_PASSPHRASE": PASSPHRASE, "SVC_CONTROLLER_DATA": str(folder / "data")})
    archive = folder / "svc-controller-20261122T000000Z.age"
    archive.write_bytes(b"age-encryption.org/v1\n")

    damaged = await terminal.svc("controller", "restore", str(archive))
    (folder / "data").mkdir()
    (folder / "data" / "secret.key").touch()
    in_use = await terminal.svc("controller", "restore", str(archive))

    assert damaged.code == Exit.INVALID
    assert "is not restored" in damaged.err
    assert in_use.code == Exit.CONFLICT
    assert "is not empty" in in_use.err
    assert [path.name for path in (folder / "data").iterdir()] == ["secret.key"]


async def test_a_restore_that_was_interrupted_is_not_taken_for_a_controller(folder: Path) -> None:
    config = local_config(folder / "data")
    config.data_dir.mkdir()
    (config.data_dir / UNFINISHED).touch()

    with pytest.raises(DatabaseStartError, match="was interrupted"):
        async with open_controller(config, {}):
            pytest.fail("half a controller must not serve")


async def test_a_power_cut_in_the_middle_of_a_restore_is_begun_again_from_an_empty_folder(folder: Path) -> None:
    """The restoring process, and the PostgreSQL that it started, are killed while the database is being loaded."""
    config, kept, target = local_config(folder / "controller"), folder / "kept", folder / "second"
    kept.mkdir()
    with structlog.testing.capture_logs():
        house = await house_with_ballast(config, folder, kept)
    [archive] = kept.iterdir()
    restore = ("controller", "restore", str(archive), "--data", str(target))

    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", "from svc.cli import main; main()", *restore],
        env=house.variables(),
        start_new_session=True,
    )
    await until_loading(target)
    os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    cut_power(target / "postgresql")

    served = await house.svc("serve", "controller", "--data", str(target))
    at_once = await house.svc(*restore)
    shutil.rmtree(target)
    again = await house.ok(*restore)

    assert served.code == Exit.FAILED
    assert "was interrupted" in served.err
    assert at_once.code == Exit.CONFLICT
    assert "was interrupted" in at_once.err
    assert "Sessions ended" in again.out
    async with reachable_urls(target, {}) as urls, Database.open(urls.owner, size=1) as database:
        assert await database.fetchval("SELECT count(*) FROM ballast") == 150_000
        assert await database.fetchval("SELECT count(*) FROM projects WHERE name = 'kept'") == 1


async def house_with_ballast(config: ControllerConfig, folder: Path, kept: Path) -> House:
    """A controller that was backed up, and is gone."""
    async with opened_house(config, {}, folder) as house:
        house.environment["SVC_BACKUP_PASSPHRASE"] = PASSPHRASE
        await house.ok("project", "create", "kept")
        async with reachable_urls(config.data_dir, {}) as urls, Database.open(urls.owner, size=1) as database:
            # Some seconds of work: what cannot be compressed.
            await database.execute(
                "CREATE TABLE ballast AS SELECT sha512(n::text::bytea) AS bytes FROM generate_series(1, 150000) n"
            )
        await house.ok("controller", "backup", "--data", str(config.data_dir), "--to", str(kept))
    return house


async def until_loading(target: Path) -> None:
    """Another process restores; what it has loaded so far is what is waited for."""
    with trio.fail_after(60):
        while not (target / "postgresql" / "cluster").exists():
            await trio.sleep(0.02)
        server = Folder.prepare(target / "postgresql", PROGRAMS)
        while not server.is_ready():
            await trio.sleep(0.02)
        async with Database.open(server.url("postgres", "postgres"), size=1) as database:
            while not await database.fetchval(
                "SELECT EXISTS (SELECT FROM pg_stat_activity"
                " WHERE application_name = 'pg_restore' AND query LIKE 'COPY%')"
            ):
                await trio.sleep(0.02)
