"""Which connections to the port of SFTP count as new, and are refused when there are many."""

from __future__ import annotations

import os
import subprocess
import sys

from svc_webhost.sftp.accept import LOGIN_SECONDS, MOST_OF_ONE, Arrivals, has_signed_in

ONE, OTHER = "192.0.2.1", "192.0.2.2"


def arrived(arrivals: Arrivals, count: int) -> None:
    for pid in range(1, count + 1):
        arrivals.add(pid, ONE, now=100.0)


def test_connections_that_signed_in_are_no_crowd_for_anybody() -> None:
    signed_in = set(range(1, MOST_OF_ONE + 1))
    arrivals = Arrivals(signed_in.__contains__)
    arrived(arrivals, 2 * MOST_OF_ONE - 1)

    assert all(arrivals.admits(place, now=101.0) for place in (ONE, OTHER) for _ in range(100))


def test_connections_that_do_not_sign_in_count_until_sshd_ends_them() -> None:
    arrivals = Arrivals(lambda _: False)
    arrived(arrivals, MOST_OF_ONE)

    assert not any(arrivals.admits(ONE, now=101.0) for _ in range(100))
    others = [arrivals.admits(OTHER, now=101.0) for _ in range(100)]
    assert 0 < others.count(False) < 100
    assert arrivals.admits(ONE, now=100.0 + LOGIN_SECONDS)


def test_processes_are_looked_at_only_in_a_crowd_and_seldom_in_a_flood() -> None:
    looked = list[int]()

    def stranger(pid: int) -> bool:
        looked.append(pid)
        return False

    arrivals = Arrivals(stranger)
    arrived(arrivals, MOST_OF_ONE - 1)

    assert arrivals.admits(OTHER, now=101.0)
    assert looked == []
    arrivals.add(MOST_OF_ONE, ONE, now=101.0)
    for flood in range(1000):
        arrivals.admits(ONE, now=101.0 + flood / 10_000)
    assert len(looked) == MOST_OF_ONE


def test_an_sshd_has_somebody_signed_in_once_it_runs_as_an_account_of_a_site() -> None:
    program = "import subprocess, sys; subprocess.run(('sh', '-c', 'echo; read line; :'))"
    mine = os.getuid()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as sshd:
        assert sshd.stdin is not None
        assert sshd.stdout is not None
        assert sshd.stdout.read(1) == b"\n"
        assert has_signed_in(sshd.pid, frozenset({mine + 1}))
        assert not has_signed_in(sshd.pid, frozenset({mine}))
        sshd.stdin.write(b"\n")
    assert not has_signed_in(sshd.pid, frozenset({mine + 1}))
