"""What becomes of a site's .htaccess files, which nginx does not read."""

from svc_actors.panel.htaccess.judging import Judged, Situation, judge
from svc_actors.panel.htaccess.parsing import Directive, parse
from svc_actors.panel.htaccess.verdicts import Opinion, Verdict

__all__ = ["Directive", "Judged", "Opinion", "Situation", "Verdict", "judge", "parse"]
