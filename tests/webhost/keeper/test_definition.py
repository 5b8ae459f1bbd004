"""What the keeper takes for a definition of a service, and what it refuses before anything is done."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from svc_webhost.keeper.definition import RefusedError, owned_by_root, parse
from svc_webhost.keeper.definition import wire as recorded
from svc_webhost.launcher import Limits, ListeningPort, ListeningSocket, Service, ServiceName
from svc_webhost.launcher_keeper import wire

SERVICE = Service(
    name=ServiceName("php-s1001"),
    command=("/usr/sbin/php-fpm8.2", "--nodaemonize"),
    user="s1001",
    group="s1001",
    environment={"SECRET": "a\nb"},
    sockets=(
        ListeningSocket(Path("/run/php/s1001.sock"), 0o660, "s1001", "www-data", "FPM_SOCKETS", "/x={descriptor}"),
    ),
    ports=(ListeningPort("::", 8080, "PORTS"),),
    nonblocking=True,
    limits=Limits(memory_mib=256),
    log=Path("/var/log/php.log"),
)


def test_a_definition_is_the_same_after_it_was_sent_and_recorded() -> None:
    sent = parse(json.loads(json.dumps(wire(SERVICE))))

    read_again = parse(json.loads(json.dumps(recorded(sent))))

    assert read_again == sent
    assert sent.command == SERVICE.command
    assert sent.limits.memory_mib == 256
    assert (sent.ports[0].address, sent.ports[0].port, sent.nonblocking) == ("::", 8080, True)
    assert sent.sockets[0].path == "/run/php/s1001.sock"


def _changed(**members: Any) -> Callable[[dict[str, Any]], None]:
    return lambda given: given.update(members)


@pytest.mark.parametrize(
    "spoil",
    [
        _changed(name="../etc"),
        _changed(name=""),
        _changed(name="a" * 65),
        _changed(command=[]),
        _changed(command="/bin/sh -c id"),
        _changed(command=["sh"]),
        _changed(command=["/bin/true", "a\0b"]),
        _changed(command=["/bin/true", 1]),
        _changed(environment={"A=B": "c"}),
        _changed(environment={"": "c"}),
        _changed(environment={"A": None}),
        _changed(environment=["A=B"]),
        _changed(log="relative"),
        _changed(log="/var/log/../../etc/passwd"),
        _changed(limits={"cpu_percent": None, "memory_mib": -1, "processes": None}),
        _changed(limits={"memory_mib": 1}),
        _changed(stop_signal=0),
        _changed(stop_signal=True),
        _changed(stop_seconds=float("nan")),
        _changed(stop_seconds=1e9),
        _changed(umask=0o1000),
        _changed(shell="id"),
        lambda given: given.pop("user"),
        lambda given: given["sockets"][0].update(mode=0o7777),
        lambda given: given["sockets"][0].update(path="run/php.sock"),
        lambda given: given["ports"][0].update(address="localhost"),
        lambda given: given["ports"][0].update(port=0),
        lambda given: given["ports"][0].update(port=65_536),
        _changed(nonblocking="yes"),
    ],
)
def test_what_is_not_a_definition_is_refused(spoil: Callable[[dict[str, Any]], object]) -> None:
    given = json.loads(json.dumps(wire(SERVICE)))
    spoil(given)

    with pytest.raises(RefusedError):
        parse(given)


def test_a_folder_that_others_may_change_is_not_trusted_with_a_socket(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)

    with pytest.raises(RefusedError):
        owned_by_root(str(shared))
    with pytest.raises(RefusedError):
        owned_by_root(str(tmp_path / "absent"))
