"""All output to the user's terminal.

Answers of the services contain untrusted text: from a guest's agent, a node, a visitor's log line, the name of a file.
A terminal obeys control characters in them (title, clipboard, colours), and marks of the Unicode Bidirectional
Algorithm make a name read as another one. This module escapes both in everything that the command line prints; only
consoles and downloads pass bytes through as they are.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

import asyncclick as click

from svc_common.characters import CONTROLS, TURNING

_HIDDEN: Final = re.compile(rf"(?![\t\n])[{CONTROLS}{TURNING}\ud800-\udfff]")
"""Lone surrogates are included, because no encoding of a terminal has them, and printing one raises an error."""
_STYLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "dim": {"dim": True},
    "green": {"fg": "green"},
    "yellow": {"fg": "yellow"},
}


def visible(text: str) -> str:
    """`text` with each character that a terminal would obey written as its escape: `\\x1b`, `\\u202e`. Line feeds and
    tabs stay."""
    return _HIDDEN.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    number = ord(found.group())
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def write(text: str) -> None:
    """A line of a result, to standard output."""
    click.echo(visible(text))


def write_json(result: Any, *, indent: int | None = None) -> None:
    """The value as JSON; hidden characters are escaped in JSON's own way."""
    text = json.dumps(result, indent=indent, ensure_ascii=False)
    click.echo(_HIDDEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text))


def write_yaml(result: Any) -> None:
    import yaml

    text = yaml.safe_dump(result, sort_keys=False, allow_unicode=True)
    if _HIDDEN.search(text):
        text = yaml.safe_dump(result, sort_keys=False)
    click.echo(text.rstrip())


def say(text: str, *, style: str | None = None) -> None:
    """A message to the user, on standard error: never mixed with a result."""
    text = visible(text)
    coloured = style is not None and sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    click.echo(click.style(text, **_STYLES[style]) if style and coloured else text, err=True)
