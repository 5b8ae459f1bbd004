"""The version of this agent."""

from __future__ import annotations

from importlib import metadata


def agent_version() -> str:
    """The version of the distribution that contains the agent: its own wheel on a node, the whole project in a
    development environment."""
    for distribution in ("svc-nodeagent", "svc"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"
