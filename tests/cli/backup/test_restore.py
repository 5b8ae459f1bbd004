"""A controller lost and restored from its backup, with hosts that went on meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import structlog
import trio

from svc.cli.backup.restore import UNFINISHED
from svc.cli.compose import open_controller
from svc.cli.failures import Exit
from svc_actors.store import DatabaseStartError
from tests.cli.conftest import Terminal
from tests.support.configuration import local_config
from tests.support.lost_controller import PASSPHRASE, opened_world


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
    assert untouched == (True, True), "nothing was made, removed or changed by itself"
    assert sorted(vm["name"] for vm in records.values()) == sorted([*old[3:], *new, "fresh"])
    assert records.keys() == hosts.keys(), "none is doubled, and none lost"
    assert addresses == carried_now
    assert len({address for address, _ in carried_now}) == len(carried_now) == 19
    assert truth.items() <= hosts.items()
    [stopped] = [vm for vm in records.values() if vm["status"] == "stopped"]
    assert stopped["name"] == old[14]


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
