"""Characters that are invisible to a reader, or that a terminal obeys, as parts of a regular expression's class."""

from __future__ import annotations

from typing import Final

CONTROLS: Final = r"\u0000-\u001f\u007f-\u009f"
"""C0, DEL and C1: terminals' escape sequences start with them, with and without ESC."""
TURNING: Final = r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Line and paragraph separators, and the marks of the Unicode Bidirectional Algorithm (UAX #9): they make a name read
as another one, or a log line as two."""
