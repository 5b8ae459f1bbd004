"""The `svc` command line: every operation of the registry, and the servers themselves (`svc serve`)."""

from __future__ import annotations


def main() -> None:
    # Imported late: `svc --version` in a script should not pay for modules that it does not use.
    from svc.cli.app import main as run

    run()
