"""Files encrypted by a passphrase, in the format age-encryption.org/v1: `age --decrypt` opens them as well.

A header holds the file's key, sealed under the passphrase by scrypt. The content follows in chunks of 64 KiB, each
sealed with ChaCha20-Poly1305 under a nonce that counts them and marks the last. So an archive can be read as a stream,
and every chunk that was altered, moved or cut off is detected.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from typing import BinaryIO, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

_VERSION: Final = b"age-encryption.org/v1\n"
_SCRYPT_LABEL: Final = b"age-encryption.org/v1/scrypt"
_CHUNK, _TAG = 64 * 1024, 16
WORK_FACTOR = 18
"""The logarithm of scrypt's cost, as age has it: 256 MiB and about a second for each guess."""
_MOST_WORK: Final = 22
_LONGEST_LINE: Final = 1024


class CannotDecrypt(Exception):  # noqa: N818 - named for what it says
    """The data was not encrypted with this passphrase, or was altered; the message says which."""


class Encrypting:
    """A file object whose written data is encrypted into `file`. `finish` must be called at the end: without it the
    file lacks its last chunk, and is refused as truncated."""

    def __init__(self, file: BinaryIO, passphrase: str) -> None:
        file_key = os.urandom(16)
        salt, nonce = os.urandom(16), os.urandom(16)
        sealed = ChaCha20Poly1305(_stretched(passphrase, salt, WORK_FACTOR)).encrypt(bytes(12), file_key, None)
        header = _VERSION + b"-> scrypt " + _text(salt) + f" {WORK_FACTOR}\n".encode() + _text(sealed) + b"\n---"
        file.write(header + b" " + _text(_mac(file_key, header)) + b"\n" + nonce)
        self._file = file
        self._cipher = _Chunks(file_key, nonce)
        self._waiting = bytearray()

    def write(self, data: bytes) -> int:
        self._waiting += data
        # The last chunk is marked as such, so one chunk is held back until there is more data.
        while len(self._waiting) > _CHUNK:
            self._file.write(self._cipher.seal(bytes(self._waiting[:_CHUNK]), last=False))
            del self._waiting[:_CHUNK]
        return len(data)

    def finish(self) -> None:
        self._file.write(self._cipher.seal(bytes(self._waiting), last=True))


class Decrypting:
    """A file object that reads the decrypted data of `file`. The constructor raises `CannotDecrypt` for a wrong
    passphrase or another kind of file, and `read` for a file that was altered or truncated."""

    def __init__(self, file: BinaryIO, passphrase: str) -> None:
        file_key, nonce = _open_header(file, passphrase)
        self._file = file
        self._cipher = _Chunks(file_key, nonce)
        self._ahead = file.read(_CHUNK + _TAG)
        self._ready = bytearray()

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, fewer only at the end."""
        while len(self._ready) < size and self._ahead:
            chunk, self._ahead = self._ahead, self._file.read(_CHUNK + _TAG)
            self._ready += self._cipher.open(chunk, last=not self._ahead)
        data = bytes(self._ready[:size])
        del self._ready[:size]
        return data


class _Chunks:
    """Seals or opens the chunks of one file, in order. The first eleven bytes of a nonce are the chunk's number; the
    twelfth marks the last chunk."""

    def __init__(self, file_key: bytes, nonce: bytes) -> None:
        self._cipher = ChaCha20Poly1305(HKDF(hashes.SHA256(), 32, salt=nonce, info=b"payload").derive(file_key))
        self._number = 0

    def seal(self, chunk: bytes, *, last: bool) -> bytes:
        return self._cipher.encrypt(self._nonce(last=last), chunk, None)

    def open(self, chunk: bytes, *, last: bool) -> bytes:
        try:
            return self._cipher.decrypt(self._nonce(last=last), chunk, None)
        except InvalidTag:
            raise CannotDecrypt("The archive was altered, or cut short.") from None

    def _nonce(self, *, last: bool) -> bytes:
        nonce = self._number.to_bytes(11, "big") + (b"\1" if last else b"\0")
        self._number += 1
        return nonce


def _open_header(file: BinaryIO, passphrase: str) -> tuple[bytes, bytes]:
    """The file's key, and the nonce of its content."""
    lines = [file.readline(_LONGEST_LINE) for _ in range(4)]
    stanza, ending = lines[1].split(), lines[3].split()
    if lines[0] != _VERSION or len(stanza) != 4 or stanza[:2] != [b"->", b"scrypt"] or ending[:1] != [b"---"]:
        raise CannotDecrypt("This is not an archive that was encrypted with a passphrase.")
    try:
        salt, sealed, mac = _bytes(stanza[2]), _bytes(lines[2].strip()), _bytes(b"".join(ending[1:]))
        work_factor = int(stanza[3])
    except (ValueError, binascii.Error) as error:
        raise CannotDecrypt("The header of the archive is damaged.") from error
    if not 0 < work_factor <= _MOST_WORK:
        raise CannotDecrypt(f"The archive needs a work factor of {work_factor}; the most accepted is {_MOST_WORK}.")
    try:
        file_key = ChaCha20Poly1305(_stretched(passphrase, salt, work_factor)).decrypt(bytes(12), sealed, None)
    except (InvalidTag, ValueError):
        raise CannotDecrypt("The passphrase is not that of this archive, or the archive's header is damaged.") from None
    if not hmac.compare_digest(mac, _mac(file_key, b"".join(lines[:3]) + b"---")):
        raise CannotDecrypt("The header of the archive was altered.")
    return file_key, file.read(16)


def _stretched(passphrase: str, salt: bytes, work_factor: int) -> bytes:
    return Scrypt(_SCRYPT_LABEL + salt, 32, n=1 << work_factor, r=8, p=1).derive(passphrase.encode())


def _mac(file_key: bytes, header: bytes) -> bytes:
    return hmac.digest(HKDF(hashes.SHA256(), 32, salt=None, info=b"header").derive(file_key), header, "sha256")


def _text(data: bytes) -> bytes:
    return base64.b64encode(data).rstrip(b"=")


def _bytes(text: bytes) -> bytes:
    return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
