"""nginx, which serves the sites: a site's configuration, and how changes of it become live."""

from svc_actors.host.accepted import CHALLENGES
from svc_actors.host.nginx.generations import Generations, NginxError, WebServing
from svc_actors.host.nginx.model import (
    App,
    Certificate,
    Domain,
    FilePath,
    Login,
    PathRedirect,
    Php,
    ProtectedPath,
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
    "Login",
    "NginxError",
    "PathRedirect",
    "Php",
    "Ports",
    "ProtectedPath",
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
