"""nginx, which serves the sites: what a site's configuration is, and how a changed one comes to be served."""

from svc_actors.host.nginx.generations import Generations, NginxError, WebServing
from svc_actors.host.nginx.model import (
    CHALLENGES,
    App,
    Certificate,
    Domain,
    FilePath,
    PathRedirect,
    Php,
    Proxy,
    ProxyHost,
    RedirectTarget,
    RequestPath,
    Serves,
    SiteServer,
    SocketPath,
    Staged,
    StaticRoot,
    Suspended,
    WordPress,
)
from svc_actors.host.nginx.render import Ports

__all__ = [
    "CHALLENGES",
    "App",
    "Certificate",
    "Domain",
    "FilePath",
    "Generations",
    "NginxError",
    "PathRedirect",
    "Php",
    "Ports",
    "Proxy",
    "ProxyHost",
    "RedirectTarget",
    "RequestPath",
    "Serves",
    "SiteServer",
    "SocketPath",
    "Staged",
    "StaticRoot",
    "Suspended",
    "WebServing",
    "WordPress",
]
