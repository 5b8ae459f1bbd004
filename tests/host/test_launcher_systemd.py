"""What the launcher asks of systemd, which is played by a program that takes down its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc_actors.host.launcher import LauncherError, Service, ServiceName
from svc_actors.host.launcher_systemd import SystemdLauncher

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
"""


class Systemd:
    def __init__(self, folder: Path) -> None:
        self._asked, self._failing = folder / "asked", folder / "failing"
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
