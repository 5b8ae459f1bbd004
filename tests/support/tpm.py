"""Commands of a TPM 2.0 to a register of its own (TPM 2.0 Library, part 3), and a shell of a guest that sends them."""

from __future__ import annotations

import re
import struct
from typing import Final

NV_INDEX: Final = 0x01500001
_NO_PASSWORD: Final = struct.pack(">IIHBH", 9, 0x40000009, 0, 0, 0)


def _command(code: int, *handles: int, parameters: bytes) -> bytes:
    body = struct.pack(f">{len(handles)}I", *handles) + _NO_PASSWORD + parameters
    return struct.pack(">HII", 0x8002, 10 + len(body), code) + body


def define(size: int) -> bytes:
    """TPM2_NV_DefineSpace, to be read and written without a password."""
    public = struct.pack(">IHIHH", NV_INDEX, 0x000B, 0x02060006, 0, size)
    return _command(0x12A, 0x40000001, parameters=struct.pack(">HH", 0, len(public)) + public)


def write(value: bytes) -> bytes:
    return _command(0x137, NV_INDEX, NV_INDEX, parameters=struct.pack(">H", len(value)) + value + bytes(2))


def read(size: int) -> bytes:
    return _command(0x14E, NV_INDEX, NV_INDEX, parameters=struct.pack(">HH", size, 0))


def asking(command: bytes) -> str:
    """For a shell of root, which prints the answer."""
    return f"(exec 3<>/dev/tpm0; echo {command.hex()} | xxd -r -p >&3; dd bs=4096 count=1 <&3 2>/dev/null | xxd -p)"


def answered(printed: str) -> bytes:
    """The answer among what a shell printed; its code of success is asserted."""
    answer = bytes.fromhex(re.findall(r"^(80020000[0-9a-f]+)$", printed, re.MULTILINE)[-1])
    assert answer[6:10] == bytes(4), answer.hex()
    return answer


def value_of(answer: bytes, size: int) -> bytes:
    """What `read` was answered."""
    return answer[16 : 16 + size]
