"""Updates of the server's packages: looked for each day, installed by a job, with visits to all sites before and
after."""

from svc_actors.panel.updates.records import UpdateMode, Wanted

__all__ = ["UpdateMode", "Wanted"]
