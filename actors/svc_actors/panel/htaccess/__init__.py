"""What becomes of a site's .htaccess files, which nginx does not read."""

from svc_actors.host.apache.htaccess import Directive, parse
from svc_actors.panel.htaccess.judging import Judged, judge
from svc_actors.panel.htaccess.situation import Situation
from svc_actors.panel.htaccess.verdicts import (
    Denied,
    HttpsForced,
    NameRedirected,
    Opinion,
    PhpSet,
    Protected,
    Redirected,
    Verdict,
    Wish,
)

__all__ = [
    "Denied",
    "Directive",
    "HttpsForced",
    "Judged",
    "NameRedirected",
    "Opinion",
    "PhpSet",
    "Protected",
    "Redirected",
    "Situation",
    "Verdict",
    "Wish",
    "judge",
    "parse",
]
