"""nginx, which serves the sites: a site's configuration, and how changes of it become live."""

from svc_webhost.accepted import CHALLENGES
from svc_webhost.nginx.generations import Generations, NginxError, WebServing
from svc_webhost.nginx.model import (
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
from svc_webhost.nginx.render import Ports

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
