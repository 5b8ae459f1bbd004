"""Judges the .htaccess files of a site (`svc_webhost.htaccess`) in its helper, because a tenant writes their texts.

The payload is a JSON object, what the panel knows of the site:

    served      visitors see the files of its folder public/
    situation   the fields of `Situation` that are the same for all folders
    passwords   null, or of a site that is imported: by path as visitors ask for it, `file` of the site with the
                passwords that came along and what the old host calls it (`named`), or `problem`, why there are none

The answer's bytes are a JSON list of files, each with its `path` and `lines`: `line`, `text`, `verdict`, `reason` and
`wishes`, each with its kind as `wish`. `complete` of the result: those are all, and each was read whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import PurePosixPath
from typing import Any, Final

from svc_webhost.apache.htaccess import parse
from svc_webhost.apache.links import SiteLinks, reachable
from svc_webhost.apache.passwords import MOST_BYTES, NoPasswordsError, PasswordFile, read_passwords
from svc_webhost.confined.find import beginning, find
from svc_webhost.confined.protocol import Failed, FileError, JudgeHtaccess
from svc_webhost.confined.tree import Tree, held
from svc_webhost.htaccess.judging import DirectiveVerdict
from svc_webhost.htaccess.judging import judge as judge_file
from svc_webhost.htaccess.situation import INDEXES, Situation
from svc_webhost.htaccess.verdicts import Fronted, Redirected

NAME: Final = ".htaccess"
MOST_TEXT: Final = 256 << 10
"""The most bytes of one file."""
MOST_LINES: Final = 10_000
"""The most lines of a site. The core, which serves everybody, reads the verdicts about all of them."""
_MOST_TOLD: Final = 4 << 20
"""The most bytes of the answer."""
_MOST_WISHES: Final = 1000
"""The most wishes of the answer: more than a site can have settings of all their kinds."""
_LONGEST: Final = 1000
"""The most characters of a line's text, and of the reason."""
_NO_PASSWORDS: Final = "the archive has no such password file"


def judge(tree: Tree, request: JudgeHtaccess, payload: bytes) -> tuple[dict[str, Any], bytes]:
    with held(tree.open_folder(request.root)) as root:
        return _judged(Tree(root), payload)


def _judged(tree: Tree, payload: bytes) -> tuple[dict[str, Any], bytes]:
    order = json.loads(payload)
    passwords = None if order["passwords"] is None else _passwords(tree, order["passwords"])
    found = find(tree, NAME, MOST_TEXT, INDEXES)
    known = replace(_situation(order["situation"]), indexes=_indexes(found.folders))
    ways = SiteLinks(reachable(found.links) if order["served"] else [])
    told = _Told()
    for path, text in found.texts:
        folder = PurePosixPath(path).parent
        visited = folder.relative_to("public") if order["served"] and folder.parts[:1] == ("public",) else None
        here = replace(known, folder=visited, around=ways.around(folder))
        if passwords is not None:
            here = replace(here, passwords=passwords.get(here.path, _NO_PASSWORDS))
        told.add(path, judge_file(parse(text), here))
        if told.full:
            break
    return {"complete": found.complete and not told.full}, b"[" + b",".join(told.files) + b"]"


class _Told:
    def __init__(self) -> None:
        self.files: list[bytes] = []
        self.full = False
        """Whether there are lines that were left out of the answer."""
        self._lines = self._size = self._wishes = 0

    def add(self, path: str, lines: list[DirectiveVerdict]) -> None:
        named = json.dumps(os.fsencode(path).decode(errors="replace")).encode()
        self.files.append(b'{"path":%b,"lines":[%b]}' % (named, b",".join(self._some(lines))))

    def _some(self, lines: list[DirectiveVerdict]) -> Iterator[bytes]:
        for line in lines:
            told = json.dumps(self._line(line)).encode()
            self._lines, self._size = self._lines + 1, self._size + len(told)
            if self._lines > MOST_LINES or self._size > _MOST_TOLD:
                self.full = True
                return
            yield told

    def _line(self, judged: DirectiveVerdict) -> dict[str, Any]:
        opinion = judged.opinion
        left = max(0, _MOST_WISHES - self._wishes)
        # The wishes of a line are reported all or none: with only some of them, the settings would do something other
        # than the line.
        wishes = opinion.wishes if len(opinion.wishes) <= left else ()
        self._wishes += len(wishes)
        return {
            "line": judged.directive.line,
            "text": _cut(judged.directive.text),
            "verdict": opinion.verdict,
            "reason": _cut(opinion.reason),
            "wishes": [{"wish": type(wish).__name__, **asdict(wish)} for wish in wishes],
        }


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _situation(told: dict[str, Any]) -> Situation:
    return Situation(
        folder=None,
        php=told["php"],
        wordpress=told["wordpress"],
        force_https=told["force_https"],
        fallback_page=told["fallback_page"],
        utf8_pages=told["utf8_pages"],
        redirects=tuple(Redirected(*each) for each in told["redirects"]),
        fronts=frozenset(Fronted(**each) for each in told["fronts"]),
        denied=frozenset(told["denied"]),
        protected={path: frozenset(logins) for path, logins in told["protected"].items()},
        domain=told["domain"],
        names=told["names"],
        settings=told["settings"],
    )


def _indexes(folders: dict[str, list[str]] | None) -> dict[PurePosixPath, frozenset[str]] | None:
    if folders is None:
        return None
    paths = {PurePosixPath(folder): frozenset(names) for folder, names in folders.items()}
    return {path.relative_to("public"): names for path, names in paths.items() if path.parts[:1] == ("public",)}


def _passwords(tree: Tree, told: dict[str, dict[str, str]]) -> dict[str, PasswordFile | str]:
    """For each path that asked for a password on the old host: the passwords that came along, or why there are none."""
    return {path: _password_file(tree, each) for path, each in told.items()}


def _password_file(tree: Tree, told: dict[str, str]) -> PasswordFile | str:
    if "problem" in told:
        return told["problem"]
    try:
        return read_passwords(beginning(tree, told["file"], MOST_BYTES + 1))
    except NoPasswordsError as error:
        return f"no login of {told['named']} can be imported: {error}"
    except FileError as error:
        if error.code is not Failed.NOT_FOUND:
            raise
        return f"{told['named']} is not in the archive"
