"""Where the images for tests are built from, and where they are kept: $SVC_IMAGES, or the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools" / "images"
IMAGES = Path(os.environ.get("SVC_IMAGES") or Path.home() / ".cache/svc/images")
