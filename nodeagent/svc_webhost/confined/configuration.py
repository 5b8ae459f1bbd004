"""Rewrites the configuration of an application in place, in its site (`archives.applications`)."""

from __future__ import annotations

import json
import posixpath
from typing import Any, Final

from svc_webhost.archives.applications import rewritten
from svc_webhost.confined import files
from svc_webhost.confined.find import beginning
from svc_webhost.confined.protocol import RewriteConfiguration, Write
from svc_webhost.confined.tree import Tree

MOST_BYTES: Final = 1 << 20


def rewrite(tree: Tree, request: RewriteConfiguration, payload: bytes) -> dict[str, Any]:
    order = json.loads(payload)
    text = beginning(tree, request.path, MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        return {"problem": f"it has more than {MOST_BYTES:,} bytes"}
    try:
        changed = rewritten(text, order["values"], order["paths"], posixpath.basename(request.path))
    except ValueError as error:
        return {"problem": str(error)}
    files.write(tree, Write(request.path, replace=True), changed)
    return {"problem": None}
