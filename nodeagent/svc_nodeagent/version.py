"""Which version of the agent this is."""

from __future__ import annotations

from importlib import metadata


def agent_version() -> str:
    """Of the distribution the agent came in: its own wheel on a node, the whole in a development environment."""
    for distribution in ("svc-nodeagent", "svc"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"
