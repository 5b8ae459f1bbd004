"""Which processes of a PostgreSQL are sessions of sites, and how much memory each has."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from svc_webhost.postgres.sessions import sessions_of


def anonymous_bytes(pid: int) -> int:
    [kib] = re.findall(r"^RssAnon:\s+([0-9]+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(kib) << 10


@contextmanager
def process(title: str) -> Iterator[int]:
    """A child with the command line that PostgreSQL gives its own; it has all its memory once it has answered."""
    with subprocess.Popen([title], executable="/bin/cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(b"started\n")
        program.stdin.flush()
        assert program.stdout.readline() == b"started\n"
        yield program.pid
        program.stdin.close()


def test_the_memory_of_a_parallel_worker_is_that_of_the_session_that_it_works_for() -> None:
    with ExitStack() as started:
        leader, other = (
            started.enter_context(process(f"postgres: {words}"))
            for words in ("s1_ada s1_shop [local] SELECT", "owner_s2_shop s2_shop [local] idle")
        )
        worker = started.enter_context(process(f"postgres: parallel worker for PID {leader} "))
        for words in ("parallel worker for PID 1", "walwriter", "svc svc [local] idle"):
            started.enter_context(process(f"postgres: {words}"))

        found = {session.number: session for session in sessions_of(os.getpid())}

        assert {number: (each.user, each.idle) for number, each in found.items()} == {
            leader: ("s1_ada", False),
            other: ("owner_s2_shop", True),
        }
        assert found[leader].bytes == anonymous_bytes(leader) + anonymous_bytes(worker)
        assert found[other].bytes == anonymous_bytes(other)
