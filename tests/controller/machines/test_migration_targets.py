"""Where a machine could go: each other node, how, and each thing that is in the way."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import OperationResult
from tests.support.machine_service import make_node
from tests.support.machines import MachineHarness, refusal, stage

FACTS: dict[str, Any] = {
    "accelerator": "kvm",
    "cpu_model": "EPYC 7443",
    "machine_types": ["pc-i440fx-7.2", "pc-q35-7.1", "pc-q35-7.2"],
    "network_lacks": {},
}


async def know(database: Database, node_id: UUID, **changes: Any) -> None:
    await database.execute("UPDATE nodes SET facts = $2, agent_protocol = 5 WHERE id = $1", node_id, FACTS | changes)


async def machine_and_node(now: MachineHarness) -> tuple[UUID, UUID]:
    """A running machine on alpha, and beta beside it, alike."""
    vm_id: UUID = (await now.created()).vm.id
    beta = await make_node(now.service.database, now.world.location_id, "beta")
    for node_id in (now.world.node_id, beta):
        await know(now.service.database, node_id)
    return vm_id, beta


async def judged(now: MachineHarness, vm_id: UUID) -> tuple[str | None, list[str]]:
    """Of the one other node."""
    [target] = await now.administrator("vm.migration_targets", id=vm_id)
    return target.mode, target.reasons


async def test_every_other_node_is_judged_and_the_machines_own_is_not(database: Database) -> None:
    async with stage(database) as now:
        vm_id, beta = await machine_and_node(now)
        gamma = await make_node(database, now.world.location_id, "gamma", cpus=0)
        await know(database, gamma)

        found = await now.administrator("vm.migration_targets", id=vm_id)

        assert [(each.node_id, each.node_name, each.mode) for each in found] == [
            (beta, "beta", "live"),
            (gamma, "gamma", None),
        ]


async def test_a_running_machine_moves_live_and_one_that_is_off_offline(database: Database) -> None:
    async with stage(database) as now:
        vm_id, _ = await machine_and_node(now)
        running = await judged(now, vm_id)
        await now.service.ended((await now.customer("vm.shutdown", id=vm_id)).id)

        assert (running, await judged(now, vm_id)) == (("live", []), ("offline", []))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cpu_model": "EPYC 9124"}, "cpu: it has an EPYC 9124, and the machine's node an EPYC 7443"),
        ({"accelerator": "tcg"}, "cpu: it runs guests by tcg, and the machine's node by kvm"),
        (
            {"machine_types": ["pc-i440fx-7.2", "pc-q35-7.1"]},
            "machine type: it lacks pc-q35-7.2, which the machine may have been defined with",
        ),
        ({"accelerator": None}, "cpu: the hosts have not reported their processors"),
    ],
)
async def test_what_is_in_the_way_of_going_live_is_said_as_well(
    database: Database, changes: dict[str, Any], reason: str
) -> None:
    async with stage(database) as now:
        vm_id, beta = await machine_and_node(now)
        await know(database, beta, **changes)
        running = await judged(now, vm_id)
        await now.service.ended((await now.customer("vm.shutdown", id=vm_id)).id)

        assert (running, await judged(now, vm_id)) == (("restart", [reason]), ("offline", []))


async def test_a_machine_with_volumes_moves_live(database: Database) -> None:
    async with stage(database) as now:
        vm_id, _ = await machine_and_node(now)
        order = await now.customer("volume.create", name="data", size_gib=1, vm_id=vm_id)
        await now.service.ended(order.task.id)

        assert await judged(now, vm_id) == ("live", [])


async def test_a_machine_with_secure_boot_and_a_tpm_moves_live_where_it_can_have_them(database: Database) -> None:
    async with stage(database) as now:
        vm_id, beta = await machine_and_node(now)
        await database.execute("UPDATE vms SET firmware = 'uefi_secure', tpm = '2.0' WHERE id = $1", vm_id)
        lacks = {"tpm": "install swtpm-tools there"}
        await know(database, beta, platform_features=["uefi", "uefi_secure"], platform_lacks=lacks)
        without = await judged(now, vm_id)
        await know(database, beta, platform_features=["uefi", "uefi_secure", "tpm"], platform_lacks={})

        assert (without, await judged(now, vm_id)) == ((None, ["tpm: install swtpm-tools there"]), ("live", []))


async def test_emulated_guests_have_the_same_processor_everywhere(database: Database) -> None:
    async with stage(database) as now:
        vm_id, beta = await machine_and_node(now)
        await know(database, now.world.node_id, accelerator="tcg")
        await know(database, beta, accelerator="tcg", cpu_model="Xeon 6430")

        assert await judged(now, vm_id) == ("live", [])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("state = 'offline'", "node: it is offline"),
        ("state = 'pending'", "node: it is pending"),
        ("state = 'offline', lost_at = now(), state_reason = 'Declared lost: fire'", "node: it was declared lost"),
        ("mode = 'observe'", "node: it is only observed"),
        ("maintenance = true", "node: it is in maintenance"),
        ("disk_level = 'critical'", "node: its disk is nearly full, 1000 GiB free"),
        ("capacity = NULL", "node: it has not reported its capacity"),
        ("agent_protocol = 3", "agent: it speaks protocol 3, and that of the machine's node 4"),
        ("cpu_overcommit = 0.01", "vcpus: 1 wanted, 0 free"),
        ("memory_overcommit = 0.001", "memory: 256 MiB wanted, 65 MiB free"),
        ("disk_overcommit = 0.0001", "disk: 1 GiB wanted, 0 GiB free"),
    ],
)
async def test_a_node_that_takes_no_machine_says_why(database: Database, change: str, reason: str) -> None:
    async with stage(database) as now:
        vm_id, beta = await machine_and_node(now)
        await database.execute("UPDATE nodes SET agent_protocol = 4")
        await database.execute(f"UPDATE nodes SET {change} WHERE id = $1", beta)

        assert await judged(now, vm_id) == (None, [reason])


async def test_a_node_whose_agent_cannot_be_spoken_to_says_why(database: Database) -> None:
    async with stage(database) as now:
        vm_id, beta = await machine_and_node(now)
        await database.execute(
            "UPDATE nodes SET state = 'offline', state_reason = 'It is too old.' WHERE id = $1", beta
        )

        assert await judged(now, vm_id) == (None, ["node: it is offline", "agent: It is too old."])


async def test_a_machine_goes_only_where_its_addresses_can_be_carried(database: Database) -> None:
    async with stage(database) as now:
        vm_id, beta = await machine_and_node(now)
        await know(database, beta, network_lacks={"nat": "no nf_nat"})
        lacking = await judged(now, vm_id)
        await know(database, beta)
        await database.execute("UPDATE pools SET node_ids = ARRAY[$1::uuid]", now.world.node_id)
        unserved = await judged(now, vm_id)
        elsewhere = await database.fetchval("INSERT INTO locations (name) VALUES ('far') RETURNING id")
        await database.execute("UPDATE nodes SET location_id = $2 WHERE id = $1", beta, elsewhere)

        assert [lacking, unserved, await judged(now, vm_id)] == [
            (None, ["pool: it cannot carry nat (nat: no nf_nat)"]),
            (None, ["pool: nat does not serve this node"]),
            (None, ["pool: nat is of another location"]),
        ]


async def test_a_machine_goes_only_where_its_rate_and_its_groups_hold(database: Database) -> None:
    async with stage(database) as now:
        vm_id, beta = await machine_and_node(now)
        await know(database, beta, network_lacks={"rate": "no ifb", "bridge-conntrack": "no nf_conntrack_bridge"})
        unasked = await judged(now, vm_id)
        group = await now.customer("security_group.create", name="web", project_id=now.world.project_id)
        await now.customer("vm.security_groups", id=vm_id, group_ids=[group.id])
        await database.execute("UPDATE vms SET rate_mbps = 10")
        await database.execute("UPDATE pools SET topology = 'bridged'")

        assert unasked == ("live", [])
        assert await judged(now, vm_id) == (
            None,
            [
                "network: it cannot hold the machine's rate (rate: no ifb)",
                "network: it cannot keep to its security groups on a bridge (bridge-conntrack: no nf_conntrack_bridge)",
            ],
        )


async def test_a_machine_goes_only_where_its_image_is_or_can_be_fetched(database: Database) -> None:
    async with stage(database) as now:
        vm_id, beta = await machine_and_node(now)
        await database.execute("UPDATE images SET digest = NULL")
        unfetchable = await judged(now, vm_id)
        await database.execute(
            """INSERT INTO node_images (node_id, image_id, digest, size_bytes, pulled_at)
               VALUES ($1, $2, 'a', 1, now())""",
            beta,
            now.world.image_id,
        )

        assert unfetchable == (None, ["image: it lacks Demo, which has no checksum and so cannot be fetched"])
        assert await judged(now, vm_id) == ("live", [])


async def test_a_machine_that_is_not_known_to_run_or_to_be_off_moves_nowhere(database: Database) -> None:
    async with stage(database) as now:
        vm_id, _ = await machine_and_node(now)
        await database.execute("UPDATE vms SET status = 'rebooting'")
        rebooting = await judged(now, vm_id)
        await database.execute("UPDATE vms SET status = 'running'")
        await database.execute("UPDATE nodes SET state = 'offline' WHERE id = $1", now.world.node_id)
        away = await judged(now, vm_id)
        await database.execute("UPDATE nodes SET lost_at = now() WHERE id = $1", now.world.node_id)

        assert rebooting == (None, ["machine: it is rebooting; only a running or a stopped one can be migrated"])
        assert away == (None, ["machine: its node alpha is offline"])
        assert await judged(now, vm_id) == (None, ["machine: its node alpha is lost"])


async def test_a_machine_that_is_busy_or_not_shown_since_a_restore_moves_nowhere(database: Database) -> None:
    async def never(gateway: Any, _: Any, operation_id: Any, __: Any) -> OperationResult:
        await gateway.until_cancelled(operation_id)
        raise AssertionError

    async with stage(database) as now:
        vm_id, _ = await machine_and_node(now)
        now.service.gateway.answers["vm.backup"] = never
        backup = await now.staff("vm.backup", id=vm_id)
        backed_up = await judged(now, vm_id)
        await now.staff("task.cancel", id=backup.id)
        await now.service.ended(backup.id)
        idle = await judged(now, vm_id)
        await database.execute("UPDATE vms SET unconfirmed = true")

        assert backed_up == (None, ["machine: it is busy with vm.backup"])
        assert idle == ("live", [])
        assert await judged(now, vm_id) == (None, ["machine: its node alpha has not reported it as recorded yet"])


async def test_only_administrators_see_where_a_machine_could_go(database: Database) -> None:
    async with stage(database) as now:
        vm_id, _ = await machine_and_node(now)
        for api in (now.customer, now.staff):
            assert (await refusal(api, "vm.migration_targets", id=vm_id)).code is ErrorCode.FORBIDDEN
        absent = await refusal(now.administrator, "vm.migration_targets", id=uuid4())
        assert absent.code is ErrorCode.NOT_FOUND
