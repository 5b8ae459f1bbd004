"""What the launcher asks of systemd, which is played by a program that takes down its words."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from svc_webhost.launcher import GroupName, LauncherError, Limits, Service, ServiceName
from svc_webhost.launcher_systemd import SystemdLauncher
from tests.support.gateway import until

# Fails at the words that `failing` names.
_PLAYED = """#!/bin/sh
echo "$*" >> {folder}/asked
grep -q -F -f {folder}/failing <<END && exit 1
$*
END
case "$*" in *" show "*)
    echo SubState=running; echo MainPID=1; echo ExecMainStartTimestamp=@1; echo NRestarts=0
    echo ExecMainCode=0; echo ExecMainStatus=0;;
esac
case "$*" in *" revert "*)
    touch {folder}/reverting; while [ -e {folder}/held ]; do sleep 0.05; done
esac
"""


class Systemd:
    def __init__(self, folder: Path) -> None:
        self._asked, self._failing = folder / "asked", folder / "failing"
        self.held, self.reverting = folder / "held", folder / "reverting"
        played = folder / "played"
        played.write_text(_PLAYED.format(folder=folder))
        played.chmod(0o755)
        root = folder / "root"
        (root / "run/systemd/system").mkdir(parents=True)
        (root / "sys/fs/cgroup").mkdir(parents=True)
        (root / "program").touch(mode=0o755)
        self.launcher = SystemdLauncher(root=root, enter=[str(played)])
        self.fail_at(None)

    def fail_at(self, word: str | None) -> None:
        self._failing.write_text("" if word is None else f"{word}\n")

    async def ensure(self, *words: str) -> list[str]:
        """Gives what of consequence systemd was asked."""
        self._asked.write_text("")
        await self.launcher.ensure(Service(ServiceName("web"), ("/program", *words)))
        return self.asked()

    def asked(self) -> list[str]:
        asked = [line.split()[2:] for line in self._asked.read_text().splitlines() if line.startswith("systemctl")]
        return [words[0] for words in asked if words[0] != "show"]


@pytest.mark.parametrize("step", ["daemon-reload", "restart"])
async def test_what_was_written_and_not_taken_up_is_taken_up_by_the_next_call(tmp_path: Path, step: str) -> None:
    systemd = Systemd(tmp_path)
    await systemd.ensure("old")
    systemd.fail_at(step)
    with pytest.raises(LauncherError):
        await systemd.ensure("new")
    systemd.fail_at(None)

    again = await systemd.ensure("new")
    settled = await systemd.ensure("new")

    assert again[-2:] == ["daemon-reload", "restart"]
    assert settled == ["start"]


async def test_a_stopped_service_leaves_nothing_to_be_taken_up(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    systemd.fail_at("restart")
    with pytest.raises(LauncherError):
        await systemd.ensure("new")
    systemd.fail_at(None)

    await systemd.launcher.stop(ServiceName("web"))

    assert [path for path in (tmp_path / "root/run").rglob("*") if path.is_file()] == []


async def test_limits_of_a_group_outlast_its_last_service_when_another_begins_meanwhile(tmp_path: Path) -> None:
    systemd, group, limits = Systemd(tmp_path), GroupName("site-1001"), Limits(memory_mib=64)
    last, other = (
        Service(ServiceName(name), ("/program",), limits=limits, limit_group=group) for name in ("task", "web")
    )
    await systemd.launcher.ensure(last)
    systemd.held.touch()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(systemd.launcher.stop, last.name)
        await until(systemd.reverting.exists)
        nursery.start_soon(systemd.launcher.ensure, other)
        await until((tmp_path / "root/run/systemd/system/svc-host-web.service").exists)
        systemd.held.unlink()
    status = await systemd.launcher.status(other.name)

    assert [words for words in systemd.asked() if words in ("revert", "set-property")][-1] == "set-property"
    assert status.weaker_limits == ("memory: no limit, this server has no control groups for it",)
