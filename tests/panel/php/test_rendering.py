"""What php-fpm is told of a site, and by which names."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from svc_webhost.accounts import SiteAccount
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import LauncherError, Limits, Service, ServiceName, ServiceStatus
from svc_webhost.php import (
    ErrorReporting,
    PhpError,
    PhpMasters,
    PhpSettings,
    Pool,
    number_of,
    pool_service,
    render_pool,
    socket_of,
)
from svc_webhost.php.pool import configuration_of
from svc_webhost.site_runtime import service_name
from tests.support.panel import RecordedLauncher

FOLDERS = HostFolders(Path("/var/lib/svc/panel"))
POOL = Pool(SiteAccount(1001), "8.2")


@pytest.mark.parametrize("lost", ["emptied", "removed"])
async def test_a_configuration_that_is_lost_while_php_runs_is_written_anew(tmp_path: Path, lost: str) -> None:
    folders = HostFolders(tmp_path)
    masters = PhpMasters(folders, RecordedLauncher())
    configuration = configuration_of(POOL, folders)
    await masters.reconcile([POOL])
    before = configuration.read_text()
    configuration.write_text("") if lost == "emptied" else shutil.rmtree(folders.php)

    await masters.reconcile([POOL])

    assert configuration.read_text() == before == render_pool(POOL, folders)


async def test_a_configuration_that_cannot_be_written_leaves_the_next_site_its_own(tmp_path: Path) -> None:
    folders = HostFolders(tmp_path)
    masters = PhpMasters(folders, RecordedLauncher())
    other = Pool(SiteAccount(1002), "8.2")
    in_the_way = configuration_of(POOL, folders).parent
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("a file where a folder should be")

    with pytest.raises(PhpError, match="cannot be written"):
        await masters.reconcile([POOL, other])

    assert configuration_of(other, folders).read_text() == render_pool(other, folders)


async def test_a_start_for_which_the_disk_has_no_room_is_an_error_of_php(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other error would end the round that looks after the PHP of all sites."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("svc_webhost.php.masters.program", lambda _: Path("/bin/true"))
    monkeypatch.setattr("svc_webhost.php.masters._prepare", full)
    with pytest.raises(PhpError, match="No space left on device"):
        await PhpMasters(HostFolders(tmp_path), RecordedLauncher()).start(POOL)


async def test_a_master_that_does_not_come_to_rest_keeps_no_other_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [Pool(SiteAccount(number), "8.2").service_name for number in (1001, 1002)]
    rested: list[ServiceName] = []

    class Hanging(RecordedLauncher):
        async def processes(self) -> dict[ServiceName, int]:
            return {name: 1 for name in names}

        async def stop_idle(self, name: ServiceName) -> None:
            if name == names[0]:
                raise LauncherError("systemctl stop failed: no answer in time.")
            rested.append(name)

    monkeypatch.setattr("svc_webhost.php.masters._asked", lambda _: 7)
    masters = PhpMasters(HostFolders(tmp_path), Hanging())
    await masters.rest_idle(0)

    with pytest.raises(PhpError, match="no answer in time"):
        await masters.rest_idle(0)

    assert rested == [names[1]]


async def test_a_launcher_that_neither_starts_nor_stops_php_is_an_error_of_php(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when systemd hangs. Any other error would end the round that looks after all sites' PHP."""

    class Hanging(RecordedLauncher):
        async def ensure(self, service: Service) -> ServiceStatus:
            raise LauncherError("systemctl start failed: no answer in time.")

        async def stop(self, name: ServiceName) -> None:
            raise LauncherError("systemctl stop failed: no answer in time.")

    monkeypatch.setattr("svc_webhost.php.masters.program", lambda _: Path("/bin/true"))
    with pytest.raises(PhpError, match="systemctl start failed"):
        await PhpMasters(HostFolders(tmp_path), Hanging()).start(POOL)


def directives(pool: Pool) -> dict[str, str]:
    lines = (line.partition(" = ") for line in render_pool(pool, FOLDERS).splitlines())
    return {name: value for name, _, value in lines}


def test_settings_become_those_of_php() -> None:
    settings = PhpSettings(
        memory_limit_mib=96,
        upload_max_filesize_mib=20,
        max_execution_time=45,
        display_errors=True,
        timezone="Europe/Vienna",
    )

    rendered = directives(replace(POOL, settings=settings))

    assert rendered["php_value[memory_limit]"] == "96M"
    assert rendered["php_value[upload_max_filesize]"] == "20M"
    assert rendered["php_value[post_max_size]"] == "28M"
    assert rendered["php_value[max_execution_time]"] == "45"
    assert rendered["php_flag[display_errors]"] == "on"
    assert rendered["php_value[date.timezone]"] == '"Europe/Vienna"'


def test_levels_of_errors_are_numbers_since_php_fpm_knows_no_names_of_them() -> None:
    levels = {
        level: directives(replace(POOL, settings=PhpSettings(error_reporting=level)))["php_value[error_reporting]"]
        for level in ErrorReporting
    }

    assert levels == {"all": "32767", "without_deprecated": "6143", "without_notices": "5111", "fatal": "4437"}


@pytest.mark.parametrize(
    "values",
    [
        {"memory_limit_mib": 8},
        {"upload_max_filesize_mib": 501},
        {"max_execution_time": 301},
        {"workers": 0},
        {"timezone": 'UTC"\nphp_admin_value[disable_functions] = '},
        {"timezone": "../../etc/passwd"},
        {"auto_prepend_file": "/etc/passwd"},
    ],
)
def test_what_is_out_of_bounds_or_unknown_is_no_setting(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PhpSettings.model_validate(values)


def test_workers_stay_within_the_processes_of_the_site() -> None:
    few = directives(replace(POOL, limits=Limits(processes=6)))
    least = directives(replace(POOL, limits=Limits(processes=4)))

    assert directives(POOL)["pm.max_children"] == "8"
    assert few["pm.max_children"] == "3"
    assert least["pm.max_children"] == "1"


@pytest.mark.parametrize(
    "other",
    [
        replace(POOL, settings=PhpSettings(display_errors=True)),
        replace(POOL, limits=Limits(processes=4)),
        replace(POOL, version="8.3"),
        replace(POOL, restarts=1),
        replace(POOL, account=SiteAccount(1002)),
    ],
)
def test_whatever_is_defined_otherwise_is_another_service_with_another_socket(other: Pool) -> None:
    assert other.service_name != POOL.service_name
    assert socket_of(other, FOLDERS) != socket_of(POOL, FOLDERS)
    assert replace(POOL).service_name == POOL.service_name


def test_limits_of_the_site_alone_are_changed_while_it_runs() -> None:
    other = replace(POOL, limits=Limits(cpu_percent=50, memory_mib=64))

    assert other.service_name == POOL.service_name


def test_its_service_is_known_by_its_name() -> None:
    service = pool_service(POOL, FOLDERS)

    assert number_of(service.name) == 1001
    assert number_of(service_name(SiteAccount(1001), "app")) is None
    assert [socket.path for socket in service.sockets] == [socket_of(POOL, FOLDERS)]
    assert service.sockets[0].group == "www-data"
