"""The controller's Debian package, installed on a host whose first process is systemd, as an operator lives with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from tests.support.certificates import self_signed
from tests.support.package import packages
from tests.support.systemd_root import SMALL, SystemdRoot, systemd_root

pytestmark = [pytest.mark.system, pytest.mark.isolated]

UNIT = "svc-controller.service"
HEALTHY = ("curl", "-fsS", "http://127.0.0.1:8445/healthz")
STATUS = "dpkg-query --show --showformat='${db:Status-Status}' svc-controller"
_NAMES = ("pebble-challtestsrv", "-defaultIPv6", "", "-http01", "", "-https01", "", "-tlsalpn01", "")
_PEBBLE = ("pebble", "-config", "/etc/pebble/pebble.json", "-dnsserver", "127.0.0.1:8053")
AUTHORITY = "/var/lib/svc/controller/tls/authority.pem"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdRoot]:
    with systemd_root(tmp_path_factory.mktemp("host"), SMALL) as root:
        (root.folder / "var/cache/svc-controller.deb").write_bytes(packages()["svc-controller"].read_bytes())
        root.run("dpkg", "--install", "/var/cache/svc-controller.deb")
        yield root


def show(host: SystemdRoot, name: str) -> str:
    return host.run("systemctl", "show", "--property", name, "--value", UNIT).strip()


def test_an_installed_controller_serves_as_a_user_of_its_own(host: SystemdRoot) -> None:
    assert '"ok"' in host.run(*HEALTHY)
    assert host.run("systemctl", "is-enabled", UNIT).strip() == "enabled"
    owners = host.run("ps", "-o", "user=", "--ppid", show(host, "MainPID"), "-p", show(host, "MainPID")).split()
    assert set(owners) == {"svc"}
    assert host.run("stat", "-c", "%U %a", "/var/lib/svc/controller/setup-token").split() == ["svc", "600"]
    assert "https://127.0.0.1:8443" in host.run("journalctl", "--unit", UNIT, "--no-pager")
    assert "alerts.yml" in host.run("ls", "/usr/share/svc-controller/monitoring")
    assert "ok       service: it runs" in host.run("runuser", "-u", "svc", "--", "svc", "controller", "check")


def test_systemd_finds_little_that_the_service_could_do_besides(host: SystemdRoot) -> None:
    verdict = host.run("systemd-analyze", "security", "--no-pager", "--threshold=20", UNIT)

    assert "Overall exposure level" in verdict


def test_a_killed_controller_is_back_with_its_data(host: SystemdRoot) -> None:
    authority = host.run("cat", AUTHORITY)

    host.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", UNIT)
    host.until("sh", "-c", f"[ $(systemctl show --property NRestarts --value {UNIT}) -ge 1 ]")
    host.until(*HEALTHY)

    assert host.run("cat", AUTHORITY) == authority


def test_who_comes_while_it_is_restarted_waits_and_is_refused_by_nobody(host: SystemdRoot) -> None:
    url = "https://127.0.0.1:8443/api/v1/openapi.json"

    with host.visited(url, "--cacert", AUTHORITY) as restarted:
        host.run("systemctl", "restart", UNIT)
        host.until(*HEALTHY)
    with host.visited(url, "--cacert", AUTHORITY) as killed:
        host.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", UNIT)
        host.until("sh", "-c", f"[ $(systemctl show --property NRestarts --value {UNIT}) -ge 1 ]")
        host.until(*HEALTHY)

    assert set(restarted) == {0}
    assert 0 in killed
    # 7: nobody listened. A visit that was being answered ended with the process.
    assert 7 not in killed


def test_a_half_unpacked_release_is_not_started_and_installing_again_mends_it(host: SystemdRoot) -> None:
    """A power cut while dpkg unpacks: every process but the first ends."""
    authority = host.run("cat", AUTHORITY)
    installing = host.start("dpkg", "--install", "/var/cache/svc-controller.deb")
    # In one process, since unpacking takes a second.
    cut = f"until [ $({STATUS}) = half-installed ]; do :; done; kill -KILL -1"
    host.run("timeout", "60", "sh", "-c", cut, check=False)
    installing.wait(30)

    host.until("sh", "-c", f"journalctl --unit {UNIT} --no-pager | grep -q 'half unpacked: install it again'")
    left = host.run("sh", "-c", STATUS), show(host, "ActiveState")
    host.run("dpkg", "--install", "/var/cache/svc-controller.deb")
    host.until(*HEALTHY)

    assert left == ("half-installed", "inactive")
    assert host.run("cat", AUTHORITY) == authority


def test_its_settings_are_read_from_the_file_and_a_mistake_in_it_is_in_the_journal(host: SystemdRoot) -> None:
    settings = host.folder / "etc/svc/controller.toml"
    before = settings.read_text()
    settings.write_text(before + 'public-host = "controller.example"\napi-port = 443\n')
    host.run("systemctl", "restart", UNIT)

    answer = host.run(
        *("curl", "-fsS", "--cacert", AUTHORITY, "--resolve", "controller.example:443:127.0.0.1"),
        "https://controller.example/api/v1/openapi.json",
    )
    assert '"openapi"' in answer

    settings.write_text(before + "api-prt = 443\n")
    host.run("systemctl", "restart", UNIT, check=False)
    host.until("sh", "-c", f"journalctl --unit {UNIT} --no-pager | grep -q 'there is no setting api-prt'")

    assert show(host, "ActiveState") == "failed"

    settings.write_text(before)
    host.run("systemctl", "restart", UNIT)
    host.until(*HEALTHY)


def test_it_gets_its_certificate_by_acme_from_behind_its_units_walls(host: SystemdRoot) -> None:
    """It binds port 80 without root, proves that the name is its own, and shows what the authority made."""
    settings, pebble = host.folder / "etc/svc/controller.toml", host.folder / "etc/pebble"
    before = settings.read_text()
    pebble.mkdir()
    self_signed(pebble)
    for program in ("pebble", "pebble-challtestsrv"):
        shutil.copy(f"/usr/bin/{program}", host.folder / "usr/bin")
    listening = {"listenAddress": "127.0.0.1:14000", "managementListenAddress": "127.0.0.1:15000"}
    shown = {"certificate": "/etc/pebble/certificate.pem", "privateKey": "/etc/pebble/key.pem"}
    (pebble / "pebble.json").write_text(json.dumps({"pebble": listening | shown | {"httpPort": 80, "tlsPort": 443}}))
    with (host.folder / "etc/hosts").open("a") as hosts:
        hosts.write("127.0.0.1 localhost controller.example\n")
    host.run("systemd-run", "--unit", "names", *_NAMES)
    host.run(*("systemd-run", "--unit", "pebble", "--setenv", "PEBBLE_VA_NOSLEEP=1"), *_PEBBLE)
    host.until("curl", "-fsSk", "--output", "/etc/pebble/root.pem", "https://localhost:15000/roots/0")

    settings.write_text(
        before + 'public-host = "controller.example"\n[acme]\ncontact = "ops@provider.example"\nterms-agreed = true\n'
        'directory = "https://localhost:14000/dir"\nroots = "/etc/pebble/certificate.pem"\n'
    )
    host.run("systemctl", "restart", UNIT)

    url = "https://controller.example:8443/api/v1/openapi.json"
    assert '"openapi"' in host.until("curl", "-fsS", "--cacert", "/etc/pebble/root.pem", url)
    assert "location: https://controller.example:8443/" in host.run("curl", "-sI", "http://controller.example/")
    checked = host.run("runuser", "-u", "svc", "--", "svc", "controller", "check")
    assert "ok       port 80: the controller answers at controller.example" in checked
    assert host.run("stat", "-c", "%U %a", "/var/lib/svc/controller/tls/acme.pem").split() == ["svc", "600"]

    settings.write_text(before)
    host.run("systemctl", "restart", UNIT)
    host.until(*HEALTHY)


def test_it_is_backed_up_by_its_timers_service_and_restored_into_an_empty_folder(host: SystemdRoot) -> None:
    settings, passphrase = host.folder / "etc/svc/controller.toml", host.folder / "etc/svc/backup-passphrase"
    before, authority = settings.read_text(), host.run("cat", AUTHORITY)
    passphrase.write_text("four words of an operator\n")
    host.run("sh", "-c", "cd /etc/svc && chown root:svc backup-passphrase && chmod 640 backup-passphrase")
    host.run("install", "-d", "-o", "svc", "-g", "svc", "-m", "700", "/srv/backup")
    settings.write_text(before + '[backup]\nto = "/srv/backup"\npassphrase-file = "/etc/svc/backup-passphrase"\n')

    host.run("systemctl", "enable", "--now", "svc-controller-backup.timer")
    host.run("systemctl", "start", "svc-controller-backup.service")
    verified = host.run("runuser", "-u", "svc", "--", "svc", "controller", "backups", "--verify")
    host.run("systemctl", "stop", UNIT)
    host.run("sh", "-c", "rm -r /var/lib/svc/controller/*")
    given = "--passphrase-file /etc/svc/backup-passphrase"
    host.run("sh", "-c", f"runuser -u svc -- svc controller restore /srv/backup/*.age {given}")
    host.run("systemctl", "start", UNIT)
    host.until(*HEALTHY)

    assert "  ok  127.0.0.1" in verified
    assert host.run("cat", AUTHORITY) == authority
    assert "[backup]" in host.run("cat", "/var/lib/svc/controller/controller.toml.restored")
    settings.write_text(before)


def test_a_removed_controller_leaves_no_process_and_keeps_its_data(host: SystemdRoot) -> None:
    host.run("dpkg", "--purge", "svc-controller")

    assert host.run("pgrep", "-u", "svc", check=False) == ""
    assert host.run("ls", AUTHORITY).strip() == AUTHORITY
    assert "svc-controller" not in host.run("systemctl", "list-unit-files", "--no-pager")
