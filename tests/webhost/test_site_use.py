"""What sites use is read from their control groups, whichever launcher has made them."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc_webhost.site_use import SiteUse, site_uses

LEGACY = {
    "memory.usage_in_bytes": "1000",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    "cpuacct.usage": "3000000000",
    "pids.events": "max 2\n",
}
LEAF = {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"}
UNIFIED = {
    "memory.current": "1000",
    "memory.events": "low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\n",
    "pids.events": "max 2\n",
    "cpu.stat": "usage_usec 3000000\nuser_usec 1\nsystem_usec 1\n",
}
KEEPER = "svc-keeper-a1/limit_groups/site-1001"
SLICE = "svc.slice/svc-site.slice/svc-site-1001.slice"


def server(folder: Path, mounts: dict[str, str], groups: dict[str, dict[str, str]], *processes: str) -> Path:
    """A /proc of processes with these lines of /proc/PID/cgroup, and the groups' files below `mounts`."""
    proc = folder / "proc"
    (proc / "self").mkdir(parents=True)
    lines = [
        f"none {folder / name} {'cgroup' if options else 'cgroup2'} rw,{options or 'nosuid'} 0 0"
        for name, options in mounts.items()
    ]
    (proc / "self/mounts").write_text("\n".join(lines))
    for path, files in groups.items():
        (folder / path).mkdir(parents=True)
        for name, content in files.items():
            (folder / path / name).write_text(content)
    for pid, cgroup in enumerate(processes, start=100):
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "cgroup").write_text(cgroup)
        (proc / str(pid) / "io").write_text("wchar: 9999\nwrite_bytes: 4096\ncancelled_write_bytes: 0\n")
    return proc


@pytest.mark.parametrize(
    ("mounts", "groups", "lines"),
    [
        (
            {"memory": "memory", "cpu": "cpu,cpuacct", "pids": "pids"},
            {f"{name}/{KEEPER}": LEGACY for name in ("memory", "cpu", "pids")},
            "".join(f"5:{name}:/{KEEPER}/site-1001-php-a1\n" for name in ("memory", "cpu,cpuacct", "pids")),
        ),
        ({"unified": ""}, {f"unified/{KEEPER}": UNIFIED}, f"0::/{KEEPER}/site-1001-php-a1\n"),
        ({"unified": ""}, {f"unified/{SLICE}": UNIFIED}, f"0::/{SLICE}/site-1001-php.service\n"),
        (
            {"memory": "memory", "pids": "pids", "unified": ""},
            {
                f"memory/{KEEPER}": LEGACY,
                f"pids/{KEEPER}": LEGACY,
                f"unified/{KEEPER}": {"cpu.stat": UNIFIED["cpu.stat"]},
            },
            f"5:memory:/{KEEPER}/commands\n4:pids:/{KEEPER}/commands\n0::/{KEEPER}/commands\n",
        ),
    ],
    ids=["v1", "v2", "systemd", "both"],
)
def test_a_sites_use_is_that_of_its_group(
    tmp_path: Path, mounts: dict[str, str], groups: dict[str, dict[str, str]], lines: str
) -> None:
    proc = server(tmp_path, mounts, groups, lines, lines, "0::/\n5:memory:/user\n")
    assert site_uses(proc) == {1001: SiteUse(3.0, memory_bytes=1000, killed=2, refused=2, written_bytes=2 * 4096)}


def test_v1_counts_who_was_killed_in_the_groups_beneath(tmp_path: Path) -> None:
    groups = {f"memory/{KEEPER}": LEGACY, f"memory/{KEEPER}/commands": LEAF, f"memory/{KEEPER}/site-1001-php-a1": LEAF}
    proc = server(tmp_path, {"memory": "memory"}, groups, f"5:memory:/{KEEPER}/commands\n")
    assert site_uses(proc) == {1001: SiteUse(memory_bytes=1000, killed=4, written_bytes=4096)}


def test_without_control_groups_nobody_is_named(tmp_path: Path) -> None:
    assert site_uses(server(tmp_path, {}, {}, "0::/\n")) == {}


def test_of_a_group_that_has_ended_nothing_is_known(tmp_path: Path) -> None:
    proc = server(tmp_path, {"unified": ""}, {}, f"0::/{KEEPER}/site-1001-php\n")
    assert site_uses(proc) == {1001: SiteUse(written_bytes=4096)}
