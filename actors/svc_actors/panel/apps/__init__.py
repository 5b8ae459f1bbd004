"""Applications of sites of the type app: what shall run, and the actor that has it run."""

from svc_actors.panel.apps.records import AppRow
from svc_actors.panel.apps.site_app import AppOrder, SiteApp

__all__ = ["AppOrder", "AppRow", "SiteApp"]
