"""Applications of sites: HTTP servers of customers' own, each on a Unix socket that the launcher holds for it."""

from svc_webhost.apps.model import App, AppInterface, AppRuntime, app_log
from svc_webhost.apps.releases import AppError, AppReleases, AppServing, app_socket

__all__ = ["App", "AppError", "AppInterface", "AppReleases", "AppRuntime", "AppServing", "app_log", "app_socket"]
