"""The key of a restic repository, sealed anew so that it opens at once.

`restic init` chooses how hard its scrypt is by the machine: half a second of an idle one, which each later command pays
again. What restic does with a repository is the same whatever its key costs.

As a program it is `restic init`, for what makes its repositories itself (tests/support/restic_stand_in.py).
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from base64 import b64decode, b64encode
from hashlib import scrypt, sha256
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, ECB
from cryptography.hazmat.primitives.poly1305 import Poly1305

from tests.support.restic_stand_in import ITSELF

_COST = {"N": 16, "r": 1, "p": 1}


def _init(arguments: list[str]) -> int:
    """`restic init`. Of a repository elsewhere than in a folder the key stays as it is."""
    # The folder may be one that is open, and inherited: /proc/self/fd/NUMBER.
    status = subprocess.run([ITSELF, *arguments], check=False, close_fds=False).returncode
    named = dict(itertools.pairwise(arguments))
    repository = named.get("--repo", os.environ.get("RESTIC_REPOSITORY", ""))
    password = os.environ.get("RESTIC_PASSWORD") or Path(os.environ["RESTIC_PASSWORD_FILE"]).read_text().strip()
    if status == 0 and repository.startswith("/"):
        make_key_cheap(Path(repository), password)
    return status


def make_key_cheap(repository: Path, password: str) -> None:
    """Of a repository that has just been made, in a folder."""
    [file] = (repository / "keys").iterdir()
    key = json.loads(file.read_text())
    sealed = b64decode(key["data"])
    iv, content = sealed[:16], sealed[16:-16]
    encryption, authentication = _derived(key, password)
    assert _mac(authentication, iv, content) == sealed[-16:]
    plain = _crypted(encryption, iv, content)

    cheap = key | _COST
    encryption, authentication = _derived(cheap, password)
    iv = os.urandom(16)
    content = _crypted(encryption, iv, plain)
    cheap["data"] = b64encode(iv + content + _mac(authentication, iv, content)).decode()
    text = json.dumps(cheap).encode()
    # By rename: whoever makes a repository may be killed at any moment.
    part = repository / "tmp-cheap-key"
    part.write_bytes(text)
    part.rename(file.parent / sha256(text).hexdigest())
    file.unlink()


def _derived(key: dict[str, Any], password: str) -> tuple[bytes, bytes]:
    """The keys that encrypt and that authenticate the repository's own key."""
    salt, most_memory = b64decode(key["salt"]), 256 * 1024**2
    both = scrypt(password.encode(), salt=salt, n=key["N"], r=key["r"], p=key["p"], maxmem=most_memory, dklen=64)
    return both[:32], both[32:]


def _crypted(key: bytes, iv: bytes, content: bytes) -> bytes:
    return Cipher(AES(key), CTR(iv)).encryptor().update(content)


def _mac(key: bytes, iv: bytes, content: bytes) -> bytes:
    """Poly1305-AES."""
    nonce = Cipher(AES(key[:16]), ECB()).encryptor().update(iv)  # one block, as the construction has it
    return Poly1305.generate_tag(key[16:] + nonce, content)


if __name__ == "__main__":
    sys.exit(_init(sys.argv[1:]))
