"""The filter of system calls, as the kernel reads it, for both machines: no machine here is an aarch64."""

from __future__ import annotations

import errno

import pytest

from svc_webhost.confined import seccomp

ALLOWED, KILLED = 0x7FFF_0000, 0x8000_0000
ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
NUMBERS = {
    "x86_64": {"clone": 56, "clone3": 435, "unshare": 272, "socket": 41, "socketpair": 53, "ioctl": 16, "read": 0},
    "aarch64": {"clone": 220, "clone3": 435, "unshare": 97, "socket": 198, "socketpair": 199, "ioctl": 29, "read": 63},
}


def judged(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the kernel does by the filter (Documentation/networking/filter.rst)."""
    data = {0: number, 4: ARCHITECTURES[machine] if architecture is None else architecture}
    data |= {16 + 8 * index: value & 0xFFFF_FFFF for index, value in enumerate(arguments)}
    program, at, accumulator = seccomp.program(machine), 0, 0
    while True:
        code, jt, jf, k = program[at]
        at += 1
        match code:
            case 0x20:
                accumulator = data.get(k, 0)
            case 0x54:
                accumulator &= k
            case 0x15:
                at += jt if accumulator == k else jf
            case 0x25:
                at += jt if accumulator > k else jf
            case 0x45:
                at += jt if accumulator & k else jf
            case 0x06:
                return k
            case _:
                raise AssertionError(code)


def error(number: int) -> int:
    return 0x0005_0000 | number


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("call", "arguments", "verdict"),
    [
        ("read", (), ALLOWED),
        ("clone", (0x11,), ALLOWED),
        ("clone", (0x003D_0F00,), ALLOWED),
        ("clone", (0x1000_0011,), error(errno.EPERM)),
        ("clone", (0x4000_0011,), error(errno.EPERM)),
        ("clone3", (), error(errno.ENOSYS)),
        ("unshare", (0x200,), ALLOWED),
        ("unshare", (0x1000_0000,), error(errno.EPERM)),
        ("unshare", (0x80,), error(errno.EPERM)),
        ("socket", (1, 5, 0), ALLOWED),
        ("socket", (2, 0x8_0001, 6), ALLOWED),
        ("socket", (10, 2, 17), ALLOWED),
        ("socket", (16, 3, 0), ALLOWED),
        ("socket", (16, 3, 12), error(errno.EPROTONOSUPPORT)),
        ("socket", (2, 1, 132), error(errno.EPROTONOSUPPORT)),
        ("socket", (2, 6, 0), error(errno.ESOCKTNOSUPPORT)),
        ("socket", (17, 3, 0), error(errno.EAFNOSUPPORT)),
        ("socket", (38, 5, 0), error(errno.EAFNOSUPPORT)),
        ("socket", (40, 1, 0), error(errno.EAFNOSUPPORT)),
        ("socketpair", (1, 1, 0), ALLOWED),
        ("socketpair", (30, 1, 0), error(errno.EAFNOSUPPORT)),
        ("ioctl", (0, 0x5401), ALLOWED),
        ("ioctl", (0, 0x5412), error(errno.EPERM)),
    ],
)
def test_a_call_is_judged_by_its_arguments(machine: str, call: str, arguments: tuple[int, ...], verdict: int) -> None:
    assert judged(machine, NUMBERS[machine][call], *arguments) == verdict


@pytest.mark.parametrize("number", [425, 428, 430, 442])
def test_calls_with_one_number_everywhere_are_refused(machine: str, number: int) -> None:
    assert judged(machine, number) == error(errno.EPERM)


def test_what_is_newer_than_the_list_and_another_architecture_are_no_way_around(machine: str) -> None:
    assert judged(machine, 4096) == error(errno.ENOSYS)
    assert judged(machine, 0x4000_0000 + 272) == error(errno.ENOSYS)
    assert judged(machine, 0, architecture=0x4000_0003) == KILLED


def test_no_jump_leaves_the_program(machine: str) -> None:
    program = seccomp.program(machine)

    assert len(program) < 4096
    assert all(jt < 256 and jf < 256 for _, jt, jf, _ in program)
    assert program[-1][0] == 0x06
