"""Applications of sites of type app: what should run, and the actor that makes it run."""

from svc_actors.panel.apps.records import AppRow
from svc_actors.panel.apps.site_app import AppOrder, SiteApp

__all__ = ["AppOrder", "AppRow", "SiteApp"]
