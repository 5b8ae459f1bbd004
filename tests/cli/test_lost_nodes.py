"""A node that never comes back, as an operator lives through it: what waits for it, what becomes of its machines."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import structlog
import trio

from svc.cli.failures import Exit
from tests.support.configuration import local_config
from tests.support.lost_controller import World, opened_world

NOTE = "burnt down on Sunday"


async def state(world: World, node: str) -> str:
    shown: str = (await world.json("node", "show", node))["state"]
    return shown


async def statuses(world: World) -> dict[str, str]:
    return {vm["name"]: vm["status"] for vm in (await world.records()).values()}


async def test_the_machines_of_a_node_that_is_declared_lost_are_deleted_without_it(tmp_path: Path) -> None:
    config = local_config(tmp_path / "controller")
    async with trio.open_nursery() as nursery:
        with structlog.testing.capture_logs():
            async with opened_world(config, tmp_path, nursery) as world:
                house = world.house
                await world.create([f"vm-{number}" for number in range(6)])
                placed: dict[str, list[tuple[str, str]]] = defaultdict(list)
                for vm in (await world.records()).values():
                    placed[vm["node_name"]].append((vm["name"], vm["primary_ip"]))
                node = next(name for name, machines in placed.items() if len(machines) > 1)
                (first, address), (second, _) = placed[node][:2]
                declare = ("node", "declare-lost", node, "--note", NOTE, "--yes")

                online = await house.svc(*declare)
                world.fleet.agents[int(node.removeprefix("sim-")) - 1].stop()  # for good

                async def offline() -> bool:
                    return await state(world, node) == "offline"

                await world.until(offline)
                await house.ok("vm", "delete", first, "--yes")
                waiting = (await statuses(world))[first]
                await house.ok(*declare)

                async def first_is_gone() -> bool:
                    return first not in await statuses(world)

                await world.until(first_is_gone)
                shown = await world.json("node", "show", node)
                started = await house.svc("vm", "start", second)
                kept = await house.svc("node", "delete", node, "--yes")
                for name, _ in placed[node][1:]:
                    await house.ok("vm", "delete", name, "--yes", "--wait")
                pool = (await world.json("pool", "list"))["items"][0]["name"]
                held = (await world.json("pool", "show", pool))["releasing_count"]
                await house.ok("pool", "force-free", pool, address, "--note", NOTE, "--yes")
                freed = (await world.json("pool", "show", pool))["releasing_count"]
                await house.ok("node", "delete", node, "--yes")
                left = {each["name"] for each in (await world.json("node", "list"))["items"]}
        nursery.cancel_scope.cancel()

    assert online.code == Exit.CONFLICT, online.err
    assert waiting == "deleting"
    assert (shown["state"], shown["state_reason"]) == ("lost", f"Declared lost: {NOTE}")
    assert started.code == Exit.CONFLICT, started.err
    assert "which is lost" in started.err
    assert kept.code == Exit.CONFLICT, kept.err
    # What the host may still use is nobody's before somebody answers for it.
    assert (held, freed) == (len(placed[node]), len(placed[node]) - 1)
    assert node not in left
