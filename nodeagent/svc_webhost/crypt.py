"""Password hashes in the system's format (shadow(5), crypt(5)), by libcrypt."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

import trio

_METHOD: Final = b"$y$"
"""yescrypt, Debian's default: it is slow on purpose, and takes memory."""
_COST: Final = 5
"""The cost in Debian's login.defs: a hash takes 16 MiB and some 20 ms."""
_QUICK_METHOD: Final = b"$6$"
_QUICK_COST: Final = 1000
"""Half a millisecond, because nginx checks the password with every request."""
_VISITORS_COST: Final = 10_000
"""Some five milliseconds: the most processor time of a worker that a visitor who guesses passwords may cost with each
request."""
_SETTING_SIZE: Final = 192
_DATA_SIZE: Final = 32_768
"""CRYPT_GENSALT_OUTPUT_SIZE and sizeof(struct crypt_data) of crypt.h."""
_threads: Final = trio.CapacityLimiter(1)


class CryptError(Exception):
    """This server's libcrypt does not hash as expected."""


async def hash_password(password: str) -> str:
    """Hash a password. One at a time, since a hash takes much memory."""
    return await trio.to_thread.run_sync(_hashed, password, limiter=_threads)


def hash_random_password(password: str) -> str:
    """Hash a password of at least 128 random bits. A quick hash suffices, since nobody can guess it."""
    return _hashed(password, _QUICK_METHOD, _QUICK_COST)


async def hash_visitors_password(password: str) -> str:
    """Hash a password that a person has chosen and that nginx checks with every request, at a medium cost."""
    return await trio.to_thread.run_sync(_hashed, password, _QUICK_METHOD, _VISITORS_COST, limiter=_threads)


def _hashed(password: str, method: bytes = _METHOD, cost: int = _COST) -> str:
    library = _library()
    setting, data = ctypes.create_string_buffer(_SETTING_SIZE), ctypes.create_string_buffer(_DATA_SIZE)
    # With None, libcrypt takes random bytes from the kernel.
    if library.crypt_gensalt_rn(method, cost, None, 0, setting, _SETTING_SIZE) is None:
        raise CryptError(f"libcrypt makes no salt for {method.decode()}")
    hashed: bytes | None = library.crypt_rn(password.encode(), setting.value, data, _DATA_SIZE)
    if hashed is None or not hashed.startswith(method):
        raise CryptError(f"libcrypt does not hash by {method.decode()}")
    return hashed.decode()


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("libcrypt.so.1")
    library.crypt_gensalt_rn.restype = library.crypt_rn.restype = ctypes.c_char_p
    library.crypt_gensalt_rn.argtypes = (
        *(ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_int),
    )
    library.crypt_rn.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int)
    return library
