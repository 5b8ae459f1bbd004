"""The statuses of an import and every move between them. Nothing else decides a status.

`uploading` until every byte of the archive is received, or `fetching` while the archive is fetched from another host;
`analysing` while the confined process reads it; `ready` once its plan can be reviewed. `applying` makes sites of it and
ends in `applied`, or in `failed`, from where it may be applied again: it continues with the sites that it has created.
An import that could not be fetched or read is `failed` too, without a plan.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from svc_common.errors import conflict


class ImportStatus(StrEnum):
    UPLOADING = "uploading"
    FETCHING = "fetching"
    ANALYSING = "analysing"
    READY = "ready"
    APPLYING = "applying"
    APPLIED = "applied"
    FAILED = "failed"


class ImportMove(StrEnum):
    WHOLE = "whole"
    """The archive was received completely."""
    READ = "read"
    APPLY = "apply"
    DONE = "done"
    BROKEN = "broken"
    """The import's job failed, was cancelled or interrupted."""


_S, _M = ImportStatus, ImportMove

MOVES: Final[dict[ImportStatus, dict[ImportMove, ImportStatus]]] = {
    _S.UPLOADING: {_M.WHOLE: _S.ANALYSING},
    _S.FETCHING: {_M.WHOLE: _S.ANALYSING, _M.BROKEN: _S.FAILED},
    _S.ANALYSING: {_M.READ: _S.READY, _M.BROKEN: _S.FAILED},
    _S.READY: {_M.APPLY: _S.APPLYING},
    _S.APPLYING: {_M.DONE: _S.APPLIED, _M.BROKEN: _S.FAILED},
    _S.APPLIED: {},
    _S.FAILED: {_M.APPLY: _S.APPLYING},
}


def move(status: ImportStatus, by: ImportMove) -> ImportStatus:
    """The status after the move `by`. Raises `conflict`; nothing was changed."""
    found = MOVES[status].get(by)
    if found is None:
        raise conflict(
            f"The import is {status.value}; nothing was changed.", hint="`svc import show` says what it has."
        )
    return found
