"""Regular expressions of .htaccess files, of which it is known for certain what they match at least, or at most.

What is not understood for certain (`\\Q`, `[]|]`, a look-ahead other than the usual one) is taken for not known.
"""

from __future__ import annotations

import re
from typing import Final

_PLAIN: Final = re.compile(r"(?:\\[^A-Za-z0-9]|\\[bdsw]|\[\^?[A-Za-z0-9_.-]+\]|\((?![?*])|[A-Za-z0-9_.*+?{},$^|~)/-])*")
_DOTFILES: Final = re.compile(r"\^\\\.(?![?*{])|\^\(\\\.[A-Za-z_-]+\)\$?$")
"""The beginning of an expression that no name matches but with a dot first: `^\\.ht`, `^(\\.env)$`."""
_WELL_KNOWN: Final = re.compile(r"\(\?!well-known(?:/|\\/)?(?:\$|\(\?:/\|\$\)|\.\*)?\)")
_SPARED: Final = "~~"
"""Stands for that look-ahead."""
_NAME: Final = "(?:git|svn|hg|env|ht|DS_Store)[A-Za-z_-]*"
_HIDDEN: Final = re.compile(
    rf"/\\\.(?![?*{{])|(?:\^|\(\^\|/\))\\\.(?:{_SPARED}|{_NAME}(?![?*{{])|\({_NAME}(?:\|{_NAME})*\)(?![?*{{]))"
)
"""The beginning of an expression that no path matches but with a name that begins with a dot, and not .well-known/."""


def only_dotfiles(expression: str) -> bool:
    """No name matches but one that begins with a dot."""
    return _DOTFILES.match(expression) is not None and _alternatives(expression) == [expression]


def only_hidden(expression: str) -> bool:
    """No path matches but one of which a name begins with a dot, beside those in /.well-known/."""
    shown = _WELL_KNOWN.sub(_SPARED, expression).replace("(?:", "(")
    alternatives = _alternatives(shown)
    return alternatives is not None and all(_HIDDEN.match(each) for each in alternatives)


def _alternatives(expression: str) -> list[str] | None:
    """Those at its top; None where that is not known."""
    if not _PLAIN.fullmatch(expression):
        return None
    found, depth, begun = list[str](), 0, 0
    for match in re.finditer(r"\\.|\[[^\[\]]*\]|[()|]", expression):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if match[0] == "|" and depth <= 0:
            found.append(expression[begun : match.start()])
            begun = match.end()
    return [*found, expression[begun:]]
