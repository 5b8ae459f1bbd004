"""Updates of the server's packages: looked for each day, and installed by a job that requests all sites before and
afterwards."""

from svc_actors.panel.updates.records import UpdateMode, Wanted

__all__ = ["UpdateMode", "Wanted"]
