"""Agents that replace themselves: real processes under their launcher, asked by a controller."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
import trio

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.nodes.upgrades import AgentRelease
from svc_nodeagent.protocol import DomainState, NodeUpgrade, OperationId, OperationResult, VmForceStop
from svc_nodeagent.releases import Releases, Trial
from tests.support.gateway import GatewayHarness, NodeOnDisk, create
from tests.support.releases import installed, kept_release, launched, wheel_of

START_SECONDS = 120.0
"""A release is installed and started by processes of its own, twice where the power is cut."""


def upgrade_to(
    rig: GatewayHarness, node: NodeOnDisk, release: AgentRelease, *, order: str = "1", trial_seconds: float = 60.0
) -> NodeUpgrade:
    operation = NodeUpgrade(
        version=release.version,
        digest=release.digest,
        size=release.size,
        signature="",
        stream_token=rig.gateway.offer_file(node.node_id, release.wheel.name),
        order=order,
        trial_seconds=trial_seconds,
    )
    return operation.model_copy(update={"signature": rig.authority.sign(operation.statement)})


async def perform(rig: GatewayHarness, node: NodeOnDisk, operation: NodeUpgrade) -> OperationResult:
    return await rig.gateway.perform(
        node.node_id, OperationId(f"{operation.order}:upgrade"), operation, timeout=START_SECONDS
    )


async def until_of_release(rig: GatewayHarness, release: AgentRelease) -> None:
    with trio.fail_after(START_SECONDS):
        while not rig.heard.hellos or rig.heard.hellos[-1].release != release.name:
            await trio.sleep(0.02)


async def test_an_agent_becomes_the_release_that_is_asked_for_and_its_machines_stay(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    old = kept_release(rig.folder / "files", "1.0", wheel_of("1.0"))
    new = kept_release(rig.folder / "files", "2.0", wheel_of("2.0"))
    installed(node.folder.path, old)

    with launched(node.folder.path, "--simulated"):
        await until_of_release(rig, old)
        creation = create()
        await rig.gateway.perform(node.node_id, OperationId("create"), creation, timeout=10)

        await perform(rig, node, upgrade_to(rig, node, new))

        hello = rig.heard.hellos[-1]
        assert (hello.agent_version, hello.release) == ("2.0", new.name)
        stop = VmForceStop(vm_id=creation.machine.vm_id)
        result = await rig.gateway.perform(node.node_id, OperationId("stop"), stop, timeout=10)
        assert getattr(result, "state", None) is DomainState.STOPPED
    assert Releases(node.folder.path).current() == new.name


def replacing(function: str, body: str) -> Callable[[str], str]:
    """A change that has an asynchronous function do something else."""
    return lambda text: text.replace(
        f"async def {function}(", f"async def {function}(*_: object) -> None:\n    {body}\n\n\nasync def _{function}_("
    )


@pytest.mark.parametrize(
    ("file", "change", "reason", "seconds"),
    [
        ("cli.py", lambda text: text + "\nraise LookupError('broken')\n", "does not start: LookupError: broken", 60.0),
        ("cli.py", replacing("_run", "sys.exit(9)"), "it ended with code 9", 60.0),
        ("connection.py", replacing("dial", "await trio.sleep(600)"), "did not accept it within 3 seconds", 3.0),
    ],
    ids=["does not start", "ends", "hangs"],
)
async def test_a_release_that_does_not_come_up_gives_way_to_the_one_before(
    rig: GatewayHarness, file: str, change: Callable[[str], str], reason: str, seconds: float
) -> None:
    node = await rig.new_node()
    old = kept_release(rig.folder / "files", "1.0", wheel_of("1.0"))
    broken = kept_release(rig.folder / "files", "2.0", wheel_of("2.0", {file: change}))
    releases = installed(node.folder.path, old)

    with launched(node.folder.path, "--simulated"):
        await until_of_release(rig, old)
        with pytest.raises(OperationFailed, match=reason) as failed:
            await perform(rig, node, upgrade_to(rig, node, broken, trial_seconds=seconds))

        assert "run" in failed.value.message
        await until_of_release(rig, old)
        await rig.gateway.perform(node.node_id, OperationId("create"), create(), timeout=10)
    assert releases.current() == old.name
    assert releases.trial() is None


async def test_what_the_authority_has_not_signed_or_what_differs_from_it_is_not_installed(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    old = kept_release(rig.folder / "files", "1.0", wheel_of("1.0"))
    new = kept_release(rig.folder / "files", "2.0", wheel_of("2.0"))
    releases = installed(node.folder.path, old)
    forged = upgrade_to(rig, node, new).model_copy(update={"digest": hashlib.sha256(b"other").hexdigest()})

    with launched(node.folder.path, "--simulated"):
        await until_of_release(rig, old)
        with pytest.raises(OperationFailed, match="not signed by this node's controller"):
            await perform(rig, node, forged)
        new.wheel.write_bytes(wheel_of("2.0", {"version.py": lambda text: text + "\n"}))
        with pytest.raises(OperationFailed, match="does not match the signature of the controller"):
            await perform(rig, node, upgrade_to(rig, node, new, order="2"))

        assert rig.gateway.is_online(node.node_id)
    assert [folder.name for folder in releases.path.iterdir() if folder.name != "current"] == [old.name]


async def test_an_agent_without_a_launcher_says_that_it_cannot_replace_itself(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    new = kept_release(rig.folder / "files", "2.0", wheel_of("2.0"))

    async with node.running():
        await rig.until_online(node.node_id)
        with pytest.raises(OperationFailed, match="not started by its launcher"):
            await perform(rig, node, upgrade_to(rig, node, new))


async def test_a_second_order_tries_again_what_was_given_up(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    old = kept_release(rig.folder / "files", "1.0", wheel_of("1.0"))
    new = kept_release(rig.folder / "files", "2.0", wheel_of("2.0"))
    releases = installed(node.folder.path, old)
    releases.install(new.wheel)
    trial = Trial(new.name, old.name, "1", 20.0)
    releases.start_trial(trial)
    releases.go_back(trial, "the network was away")

    with launched(node.folder.path, "--simulated"):
        await until_of_release(rig, old)
        with pytest.raises(OperationFailed, match="the network was away"):
            await perform(rig, node, upgrade_to(rig, node, new, order="1"))
        await perform(rig, node, upgrade_to(rig, node, new, order="2"))

        assert rig.heard.hellos[-1].release == new.name


def cutting_power_once(marker: Path, before: str) -> Callable[[str], str]:
    """A change that kills launcher and agents, where this line stands, the first time that it is come to."""

    def change(text: str) -> str:
        [line] = [each for each in text.splitlines() if each.strip() == before]
        indent = line[: len(line) - len(line.lstrip())]
        cut = f"{indent}__import__('pathlib').Path({str(marker)!r}).exists() or ("
        cut += f"__import__('pathlib').Path({str(marker)!r}).touch(), __import__('os').killpg(0, 9))"
        return text.replace(f"{line}\n", f"{cut}\n{line}\n")

    return change


@pytest.mark.parametrize(
    ("whose", "file", "before"),
    [
        ("old", "releases.py", "self.switch(trial.release)"),
        ("new", "cli.py", 'log.info("agent.started", node_id=str(agent.node_id), data=str(folder.path))'),
        ("new", "upgrade.py", 'log.info("upgrade.accepted", release=self.release)'),
    ],
    ids=["trial written", "new one starting", "accepted"],
)
async def test_an_upgrade_goes_on_after_a_power_cut_at_any_of_its_steps(
    rig: GatewayHarness, whose: str, file: str, before: str
) -> None:
    node, marker = await rig.new_node(), rig.folder / "power-was-cut"
    changes = {file: cutting_power_once(marker, before)}
    old = kept_release(rig.folder / "files", "1.0", wheel_of("1.0", changes if whose == "old" else None))
    new = kept_release(rig.folder / "files", "2.0", wheel_of("2.0", changes if whose == "new" else None))
    releases = installed(node.folder.path, old)
    creation = create()

    async with trio.open_nursery() as nursery:
        with launched(node.folder.path, "--simulated") as launcher:
            await until_of_release(rig, old)
            await rig.gateway.perform(node.node_id, OperationId("create"), creation, timeout=10)
            nursery.start_soon(perform, rig, node, upgrade_to(rig, node, new))
            with trio.fail_after(START_SECONDS):
                killed = await trio.to_thread.run_sync(launcher.wait, abandon_on_cancel=True)
        with launched(node.folder.path, "--simulated"):  # as systemd does when the host is back
            await until_of_release(rig, new)
            stop = VmForceStop(vm_id=creation.machine.vm_id)
            result = await rig.gateway.perform(node.node_id, OperationId("stop"), stop, timeout=10)

    assert killed == -signal.SIGKILL
    assert marker.exists()
    assert getattr(result, "state", None) is DomainState.STOPPED
    assert (releases.current(), releases.trial(), releases.last_rollback()) == (new.name, None, None)


def test_a_crash_at_any_step_of_a_switch_leaves_a_release_to_start(tmp_path: Path) -> None:
    old = kept_release(tmp_path / "files", "1.0", wheel_of("1.0"))
    new = kept_release(tmp_path / "files", "2.0", wheel_of("2.0"))
    releases = installed(tmp_path, old)
    releases.install(new.wheel)
    trial = Trial(new.name, old.name, str(uuid4()), 20.0)
    releases.start_trial(trial)

    assert (releases.current(), releases.trial()) == (new.name, trial)

    # Written down, and the link not yet changed: there is no trial.
    releases.switch(old.name)
    assert releases.trial() is None

    releases.start_trial(trial)
    assert not releases.accept(old.name)
    assert releases.accept(new.name)
    assert releases.trial() is None
    assert releases.current() == new.name
