"""Entry point of svc-panel-switch.service: __main__.py ROOT PACKAGE [STEADY-SECONDS]."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2)))

    from svc_webhost.releases.layout import Releases, boot_id
    from svc_webhost.releases.on_systemd import SystemdServer
    from svc_webhost.releases.switch import STEADY_SECONDS, Switch

    Switch(
        Releases(Path(sys.argv[1]), Path(sys.argv[2])),
        SystemdServer(),
        boot_id(),
        time.monotonic,
        time.sleep,
        lambda line: print(line, file=sys.stderr, flush=True),
        float(sys.argv[3]) if len(sys.argv) > 3 else STEADY_SECONDS,
    ).run()
