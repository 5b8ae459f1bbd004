"""Password files (AuthUserFile, htpasswd(1)): one login a line, with its password hash.

Accepted are hashes that nginx checks as well, by itself or with libcrypt, within some 3 milliseconds: it does so with
each request, even a stranger's, in the process that serves all sites. So at most 10,000 rounds of SHA, as the panel's
own passwords have, and a bcrypt cost of 5, as htpasswd writes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

MOST_BYTES: Final = 32 << 10
_MOST_LINES: Final = 1000
MOST_LOGINS: Final = 100
"""The most logins per path, as for a site's protected paths."""
_MOST_LEFT: Final = 50
_LOGIN: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_WHITE: Final = " \t\v\f\r"
"""Characters that Apache strips from the ends of a line."""
_ROUNDS: Final = r"(?:rounds=(?:[1-9][0-9]{3}|10000)\$)?"
_VERIFIER: Final = re.compile(
    r"\$(?:apr1|1)\$[./0-9A-Za-z]{1,8}\$[./0-9A-Za-z]{22}"
    r"|\$2[aby]\$0[45]\$[./0-9A-Za-z]{53}"
    rf"|\$5\${_ROUNDS}[./0-9A-Za-z]{{1,16}}\$[./0-9A-Za-z]{{43}}"
    rf"|\$6\${_ROUNDS}[./0-9A-Za-z]{{1,16}}\$[./0-9A-Za-z]{{86}}"
    r"|\{SHA\}[+/0-9A-Za-z]{27}="
    r"|[./0-9A-Za-z]{13}"
)
_SLOW: Final = re.compile(r"\$2[aby]\$[0-9]{2}\$[./0-9A-Za-z]{53}|\$[56]\$rounds=[0-9]+\$.*|\$(?:y|gy|7)\$.*")


class NoPasswordsError(ValueError):
    """Nothing in the password file can be taken over; the message says why."""


@dataclass(frozen=True)
class PasswordFile:
    """`verifiers` by login. `left`: logins or lines that cannot be taken over, and why; never their content."""

    verifiers: Mapping[str, str] = field(repr=False)
    left: Sequence[tuple[str, str]] = ()

    def of(self, users: frozenset[str] | None) -> PasswordFile:
        """The part that is taken over for these users, or for all. Raises `NoPasswordsError` if it is empty."""
        left = [each for each in self.left if users is None or each[0] in users]
        if users is not None:
            absent = users - self.verifiers.keys() - {who for who, _ in left}
            left += [(who[:64], "the file has no such login") for who in sorted(absent)]
        wanted = {who: verifier for who, verifier in self.verifiers.items() if users is None or who in users}
        if not wanted:
            why = f"{left[0][0]}: {left[0][1]}" if left else "it is empty"
            raise NoPasswordsError(f"none of its logins can be imported ({why})")
        left += [(who, f"a path has at most {MOST_LOGINS} logins") for who in list(wanted)[MOST_LOGINS:]]
        if len(left) > _MOST_LEFT:
            left[_MOST_LEFT:] = [(f"{len(left) - _MOST_LEFT} more", "for such reasons")]
        return PasswordFile(dict(list(wanted.items())[:MOST_LOGINS]), left)


def read_passwords(content: bytes) -> PasswordFile:
    """Read a password file as Apache does: the first line of a login counts. Raises `NoPasswordsError`."""
    if len(content) > MOST_BYTES:
        raise NoPasswordsError(f"it has more than {MOST_BYTES:,} bytes")
    lines = content.decode(errors="replace").split("\n")
    if len(lines) > _MOST_LINES:
        raise NoPasswordsError(f"it has more than {_MOST_LINES:,} lines")
    verifiers: dict[str, str] = {}
    left: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        login, colon, rest = line.strip(_WHITE).partition(":")
        if (not login and not colon) or login.startswith("#"):
            continue
        verifier = rest.partition(":")[0]
        if not colon or not _LOGIN.fullmatch(login):
            left[f"line {number}"] = "it has no login of letters, digits and . _ @ -"
        elif login in verifiers or login in left:
            continue
        elif _VERIFIER.fullmatch(verifier):
            verifiers[login] = verifier
        elif _SLOW.fullmatch(verifier):
            left[login] = "comparing its password with each request takes too long: give this login a new one"
        else:
            left[login] = "its password is stored as plain text, or in a way that the web server does not know"
    return PasswordFile(verifiers, tuple(left.items()))
