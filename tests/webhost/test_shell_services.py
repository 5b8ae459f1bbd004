"""What runs for shells: within the limits of the site, which all its programs have together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from svc_webhost.accounts import SiteAccount
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import Limits, Service, ServiceStatus
from svc_webhost.sftp import AccessKind, SftpLogin
from svc_webhost.sftp.shell.services import MOST_PROCESSES, Shells
from svc_webhost.site_runtime import site_group
from tests.support.panel import RecordedLauncher

SITE = SiteAccount(1001)


def logins(limits: Limits, *names: str) -> list[SftpLogin]:
    return [SftpLogin(f"s1001-{name}", SITE, "", None, (), AccessKind.SHELL, limits) for name in names]


def processes(service: Service) -> int | None:
    """RLIMIT_NPROC of what a shell starts."""
    told = next(word for word in service.command if word.startswith("{"))
    found: int | None = json.loads(told)["processes"]
    return found


async def test_shells_have_the_limits_of_their_site_together(tmp_path: Path) -> None:
    launcher = RecordedLauncher()
    limits = Limits(cpu_percent=50, memory_mib=512, processes=40)

    await Shells(HostFolders(tmp_path), launcher).agree(logins(limits, "ada", "bob"), ())

    assert len(launcher.services) == 2
    assert {service.limit_group for service in launcher.services.values()} == {site_group(SITE)}
    assert {service.limits for service in launcher.services.values()} == {limits}
    assert launcher.limits == {site_group(SITE): limits}


async def test_a_shell_without_a_limit_bounds_its_own_processes_and_none_of_its_sites(tmp_path: Path) -> None:
    launcher = RecordedLauncher()

    await Shells(HostFolders(tmp_path), launcher).agree(logins(Limits(), "ada"), ())

    [service] = launcher.services.values()
    assert processes(service) == MOST_PROCESSES
    assert launcher.limits == {site_group(SITE): Limits()}


async def test_what_php_would_mail_from_a_shell_of_a_copy_is_kept(tmp_path: Path) -> None:
    launcher = RecordedLauncher()
    [login] = logins(Limits(), "ada")

    await Shells(HostFolders(tmp_path), launcher).agree([replace(login, staged=True)], ())

    [service] = launcher.services.values()
    settings = Path(service.environment["PHP_INI_SCAN_DIR"].rpartition(":")[2])
    told = next(word for word in service.command if word.startswith("{"))
    assert "keep_mail.php" in (settings / "mail.ini").read_text()
    assert str(settings.parent) in json.loads(told)["shown"]


async def test_limits_that_change_hold_before_the_shell_is_compared_and_leave_its_program_as_it_is(
    tmp_path: Path,
) -> None:
    launcher = LimitsFirst()
    shells = Shells(HostFolders(tmp_path), launcher)
    await shells.agree(logins(Limits(50, 512, 40), "ada"), ())
    [before] = launcher.services.values()

    await shells.agree(logins(Limits(100, 1024, 80), "ada"), ())

    [after] = launcher.services.values()
    assert launcher.late == []
    assert (after.command, after.environment, after.sockets) == (before.command, before.environment, before.sockets)


class LimitsFirst(RecordedLauncher):
    """Notes each service that comes with limits which its group does not have yet: the keeper replaces one."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[Service] = []

    async def ensure(self, service: Service) -> ServiceStatus:
        if service.limit_group is None or self.limits.get(service.limit_group) != service.limits:
            self.late.append(service)
        return await super().ensure(service)
