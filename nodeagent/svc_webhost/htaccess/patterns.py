"""Recognises regular expressions of .htaccess files for which it is certain what they match at most.

An expression that is not understood with certainty (`\\Q`, `[]|]`, a look-ahead other than the usual one) counts as not
known, and its line blocks.

To try an expression on names would prove nothing: it may match another name. The checks here are about the text of the
expression: each alternative has to start with a hidden name.
"""

from __future__ import annotations

import re
from typing import Final

# Not matched are forms that were once mistaken for hidden names: a comment `(?#`, quotes with `\Q`, a class that starts
# with `]`.
_PLAIN: Final = re.compile(r"(?:\\[^A-Za-z0-9]|\\[bdsw]|\[\^?[A-Za-z0-9_.-]+\]|\((?![?*])|[A-Za-z0-9_.*+?{},$^|~)/-])*")
_DOTFILES: Final = re.compile(r"\^\\\.(?![?*{])|\^\(\\\.[A-Za-z_-]+\)\$?$")
"""The start of an expression that matches only names with a leading dot: `^\\.ht`, `^(\\.env)$`. A dot that `?`, `*` or
`{` makes optional does not count."""
_WELL_KNOWN: Final = re.compile(r"\(\?!well-known(?:/|\\/)?(?:\$|\(\?:/\|\$\)|\.\*)?\)")
_SPARED: Final = "~~"
"""A placeholder for this look-ahead. If a file contains `~~` itself, it gains nothing: a name that starts with `.~` is
hidden, too."""
_NAME: Final = "(?:git|svn|hg|env|ht|DS_Store)[A-Za-z_-]*"
_HIDDEN: Final = re.compile(
    rf"/\\\.(?![?*{{])|(?:\^|\(\^\|/\))\\\.(?:{_SPARED}|{_NAME}(?![?*{{])|\({_NAME}(?:\|{_NAME})*\)(?![?*{{]))"
)
"""The start of an expression that matches only paths that contain a name with a leading dot, except .well-known/."""


def only_dotfiles(expression: str) -> bool:
    """Whether the expression matches only names with a leading dot."""
    # There must be only one alternative: `^\.ht|^secret` also starts like an expression for hidden names.
    return _DOTFILES.match(expression) is not None and _alternatives(expression) == [expression]


def only_hidden(expression: str) -> bool:
    """Whether the expression matches only paths that contain a name with a leading dot, other than those in
    /.well-known/."""
    shown = _WELL_KNOWN.sub(_SPARED, expression).replace("(?:", "(")
    alternatives = _alternatives(shown)
    return alternatives is not None and all(_HIDDEN.match(each) for each in alternatives)


def only_hidden_from_top(expression: str) -> bool:
    """As `only_hidden`, for whole paths, which start with a slash: `/\\.git`."""
    match = re.match(r"\^?/(?=\\\.)", expression)
    # There must be only one alternative: in a further one, `/\.` could be the start of /.well-known/.
    if match is None or _alternatives(expression.replace("(?:", "(")) != [expression.replace("(?:", "(")]:
        return False
    return only_hidden(f"(^|/){expression[match.end() :]}")


def _alternatives(expression: str) -> list[str] | None:
    """The alternatives at the expression's top level; None if they are not known."""
    if not _PLAIN.fullmatch(expression):
        return None
    found, depth, begun = list[str](), 0, 0
    for match in re.finditer(r"\\.|\[[^\[\]]*\]|[()|]", expression):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if match[0] == "|" and depth <= 0:
            found.append(expression[begun : match.start()])
            begun = match.end()
    return [*found, expression[begun:]]
