"""The rewrite rules that are known: a front controller and its companions, the page of a single-page application,
HTTPS, redirects of one path, and denials of files that nginx denies too.

A rule is judged together with the conditions before it. Every other rule blocks.

Rules are not evaluated as mod_rewrite does. What a rule does depends on the rules around it, on files, on variables of
the server and on internal redirects; an evaluation that is nearly right would open what a rule denied. So rules are
compared as texts, with all conditions and flags, with the forms that products ship.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from svc_webhost.apache.htaccess import Directive, Lines, modules, narrowing
from svc_webhost.htaccess.denying import denied_by_rule
from svc_webhost.htaccess.falling_back import falling_back, is_not_about_page, page_of
from svc_webhost.htaccess.fronting import EVERY_PATH, FrontRule, front_controllers, program_of
from svc_webhost.htaccess.patterns import only_hidden
from svc_webhost.htaccess.redirecting import literal, redirect_match, rewritten
from svc_webhost.htaccess.situation import TOP, Situation
from svc_webhost.htaccess.verdicts import (
    Fronted,
    HttpsForced,
    NameRedirected,
    Opinion,
    Verdict,
    blocks,
    harmless,
    same,
    translated,
)

# index.php, maybe with a base in front of it that earlier rules of some frameworks compute.
_FRONT: Final = re.compile(r"(?:\./|/|%\{ENV:(?:BASE|REWRITEBASE|CWD)\}/?)?index\.php")
# Patterns that match every path. Those that need at least one character (`.`, `^(.+)$`) do not match the top folder
# itself.
_EVERYTHING: Final = EVERY_PATH.keys()
_FILES: Final = {"%{REQUEST_FILENAME}", "%{SCRIPT_FILENAME}", "%{DOCUMENT_ROOT}%{REQUEST_URI}"}
_ENDS: Final = {"l", "last", "end", "qsa", "nc", "pt", "passthrough"}
"""Flags that do not change what a rule of an .htaccess file leads to: its result is looked up as a path anyway (PT)."""
_REFUSES: Final = {"f", "forbidden", "g", "gone", "r=403", "r=404", "r=410"}
_TOLD: Final = re.compile(
    r"e(?:nv)?=(?:no-gzip|base|rewritebase|cwd|proto|protossl|w3tc_[a-z]+|http_authorization|http_x_xsrf_token"
    r"|conn_remote_addr)(?::.*)?",
    re.IGNORECASE,
)
"""Variables that are read only by rules which are judged themselves, and request headers, which PHP gets anyway."""
_TRACE: Final = {"^TRACE", "^TRACE$", "^TRAC[EK]", "^TRAC[EK]$", "^(TRACE|TRACK)", "^(TRACE|TRACK)$"}
_SPARED_RULES: Final = 3
"""How many rules WordPress's only rule of this kind skips ([S=3])."""
_BY_HTTPS: Final = "to HTTPS (`force_https`)"
_KEPT: Final = "It keeps visitors from something that nginx would serve."
_DOTFILES: Final = "nginx serves none of these files."
_TO_BASE: Final = {
    (r"^index\.php(?:/(.*)|$)", "%{ENV:BASE}/$1"),
    (r"^index\.php(/(.*)|$)", "%{ENV:BASE}/$2"),
}
"""Symfony's redirect away from /index.php, in its present and its former form."""
_NOT_FOUND: Final = re.compile(r"/?index\.php\?[\w/=&-]*(?:not_found|404)")
"""An application's page for what it does not have."""
_HIDDEN_FILES: Final = {r"(^|/)\.", r"(?:^|/)\."}
_EXISTING: Final = (("%{SCRIPT_FILENAME}", "-d", "[OR]"), ("%{SCRIPT_FILENAME}", "-f"))
# Of HTML5 Boilerplate (its expression spares nearly every name in /.well-known/) and of Backdrop.
_BUT_WELL_KNOWN: Final = {
    (("%{REQUEST_URI}", r"!(^|/)\.well-known/([^./]+./?)+$", "[NC]"), *_EXISTING),
    (("%{REQUEST_URI}", r"!^/\.well-known"),),
    (("%{REQUEST_URI}", r"!^/\.well-known/"),),
}
"""Conditions under which rules for hidden files refuse no more than nginx does."""
_SPARING_CHALLENGES: Final = {r"^\.well-known/(?!acme-challenge|pki-validation)"}
"""Of Nextcloud. Files in this folder are for everybody (RFC 8615), whatever index.php would say instead of them."""
_ONE_PAGE: Final = re.compile(r"\^[a-z]+-[a-z]+/\?\$")
"""One address of index.php, as `^ocm-provider/?$`, that is no folder."""
_FOLDERS: Final = re.compile(r"\^(?:\\?\.?[\w-]+/|\((?:\?:)?[\w-]+/(?:\|[\w-]+/)*\))")
_SOURCES_IN_FOLDER: Final = re.compile(
    r"\^[\w/-]+/(?:\(\.\*\)|\.\*)\\\.\(?(?:txt|md|mdown|markdown|ya?ml|ini|log|sql|twig|tpl|inc|[|])+\)?\$"
)
"""An expression for files in a folder that hold texts, settings or templates of an application."""
# Patterns as in guides to hardening and in security plugins. nginx denies at least as much (nginx/access.py).
_KEPT_IN_WORDPRESS: Final = {
    *("^wp-admin/includes/", "^wp-includes/[^/]+\\.php$", "^wp-includes/js/tinymce/langs/.+\\.php"),
    *("^wp-includes/theme-compat/", "^xmlrpc\\.php$", "^wp-config\\.php$", "^wp-content/debug\\.log$"),
    *("^wp-content/uploads/.*\\.(?:php[1-7]?|pht|phtml?|phps)\\.?$", "^wp-content/uploads/.*\\.php$"),
}
"""Only for a WordPress at the top of the site."""


@dataclass(frozen=True)
class _Rule:
    directive: Directive
    pattern: str
    target: str
    flags: frozenset[str]
    asked: tuple[tuple[str, ...], ...]
    """The words of the rule's conditions."""

    @property
    def about_files(self) -> frozenset[str]:
        return frozenset(words[1] for words in self.asked if _is_about_file(words))

    @property
    def about_others(self) -> list[tuple[str, ...]]:
        return [words for words in self.asked if not _is_about_file(words)]


def _is_about_file(words: tuple[str, ...]) -> bool:
    return len(words) > 1 and words[0] in _FILES and words not in _OF_PROCESSWIRE


def opinions(lines: Lines, situation: Situation) -> Mapping[int, Opinion]:
    """Opinions by the index of the directive."""
    found: dict[int, Opinion] = {}
    conditions: list[tuple[int, Directive]] = []
    engine = ["".join(each.arguments[:1]).lower() for each in lines if each.name == "rewriteengine"]
    bases = {each.arguments for each in lines if each.name == "rewritebase"}
    rules = _Rules(situation, engine_on=set(engine) == {"on"}, bases=bases)
    patterns = ["".join(each.arguments[:1]) for each in lines if each.name == "rewriterule"]
    judged = 0
    for number, directive in enumerate(lines):
        if directive.name == "rewritecond":
            conditions.append((number, directive))
        elif directive.name == "rewriterule":
            judged += 1
            spared = patterns[judged : judged + _SPARED_RULES]
            opinion = rules.judge(directive, [condition for _, condition in conditions], spared)
            # Conditions get the verdict of their rule, because alone they have no meaning.
            found |= dict.fromkeys((*(place for place, _ in conditions), number), opinion)
            conditions = []
        elif directive.name == "redirectmatch":
            found[number] = redirect_match(directive, situation)
        elif directive.name == "rewritemap":
            found[number] = blocks("nginx does not rewrite or redirect by patterns here. Add redirects of the site.")
    no_rule = blocks("No rule follows these conditions.")
    return found | dict.fromkeys((place for place, _ in conditions), no_rule)


class _Rules:
    """The rules of one file, in their order: a rule may end the processing, so that later rules have no effect."""

    def __init__(self, situation: Situation, *, engine_on: bool, bases: Set[tuple[str, ...]]) -> None:
        self._situation = situation
        self._folder = "/".join(("", *situation.parts, ""))
        # Two of them: which one holds is not known, and no program is found.
        self._base = "" if len(bases) > 1 else "".join(next(iter(bases))[:1]) if bases else None
        self._front_controller = situation.php and situation.at_top and situation.fallback_page is None
        self._base_is_top = bases <= {("/",)}
        self._wordpress = situation.wordpress and situation.at_top
        self._engine_on = engine_on
        self._files_are_done = False
        """Whether an earlier rule has ended the processing for existing files (or folders)."""
        indexes = situation.indexes
        here = situation.folder or TOP
        self._folders_are_left = indexes is not None and not any(
            folder != here and folder.is_relative_to(here) for folder in indexes
        )
        """Whether folders may be handled as nginx does. A rule without `!-d` sends folders to index.php, too, which
        nginx does only for folders without an index page: so no folder below the top may have one."""
        self._all_known = True
        """Whether no earlier rule that blocks without a wish may change paths before later rules see them."""
        self._some_are_done = False
        """Whether an earlier rule ends the processing for some files: a front controller that serves no files, even if
        its conditions are not understood, or a rule that leaves folders alone."""
        self._all_led = False
        """Whether an earlier rule leads every path without a file to a program."""
        self._led = set[str]()
        """The paths that earlier rules lead to a program."""

    def judge(self, directive: Directive, conditions: Sequence[Directive], later: Sequence[str]) -> Opinion:
        """`later`: the patterns of the next `_SPARED_RULES` rules."""
        opinion = self._judged(directive, conditions, later)
        # Unless RewriteEngine is on for the whole file, the rule may have no effect with Apache, and its wish would add
        # a new behaviour.
        if opinion.wishes and not (self._engine_on and self._all_known):
            opinion = blocks(opinion.reason)
        if opinion.verdict is Verdict.BLOCKS and not opinion.wishes and _goes_on(directive):
            self._all_known = False
        return opinion

    def _judged(self, directive: Directive, conditions: Sequence[Directive], later: Sequence[str]) -> Opinion:
        if len(directive.arguments) not in (2, 3) or any(len(each.arguments) not in (2, 3) for each in conditions):
            return blocks("It is no rule.")
        if any(narrowing(each) for each in (directive, *conditions)):
            return blocks("A rule in such a section does not do what it does elsewhere.")
        pattern, target = directive.arguments[0], directive.arguments[1]
        asked = tuple(tuple(each.arguments) for each in conditions)
        rule = _Rule(directive, pattern, target, _flags(directive.arguments), asked)
        if rule.flags == {f"s={_SPARED_RULES}"} and (opinion := self._spared(rule, later)) is not None:
            return opinion
        if any(flag in _REFUSES or flag.startswith("r=4") for flag in rule.flags):
            return self._denied(rule)
        for known in (self._harmless, self._files_first, self._front, self._page, self._canonical, self._redirect):
            if (opinion := known(rule)) is not None:
                return opinion
        return blocks("nginx does not rewrite this. See whether the application, or a redirect of the site, can do it.")

    def _denied(self, rule: _Rule) -> Opinion:
        """A rule that answers with an error. Its conditions are ignored: they only make it deny less."""
        if _is_for_trace(rule):
            return same("nginx refuses TRACE. TRACK is a method that only IIS knows.")
        if not rule.flags <= {*_REFUSES, "l", "last", "end", "nc"}:
            return blocks(_KEPT)
        if only_hidden(rule.pattern):
            return same(_DOTFILES)
        by_address = self._wordpress and rule.pattern.replace(r"\-", "-") in _KEPT_IN_WORDPRESS
        if by_address and self._situation.around is None:
            return same(_DOTFILES)
        if rule.pattern in _HIDDEN_FILES and rule.asked in _BUT_WELL_KNOWN:
            return same(_DOTFILES)
        # A denied path of the panel applies to all requests. But behind a rule that ends processing for some existing
        # files the rule never sees those. Behind a front controller it sees existing files only, and the denied path
        # holds for paths without a file, too. A rule with [NC] ignores case, and patterns of the panel do not.
        if not (rule.asked or "nc" in rule.flags or self._some_are_done or self._files_are_done):
            return denied_by_rule(rule.pattern, self._situation, pages_too=not self._all_led) or blocks(_KEPT)
        return blocks(_KEPT)

    def _harmless(self, rule: _Rule) -> Opinion | None:
        if rule.target == "-" and rule.flags and all(_TOLD.fullmatch(flag) for flag in rule.flags):
            if any(flag.startswith(("e=http_authorization", "env=http_authorization")) for flag in rule.flags):
                return same("PHP gets the header Authorization.")
            return harmless("It is for rules that are judged themselves.")
        # Cached pages of a plugin: if such a page exists, Apache serves it without PHP. Here WordPress shows the same
        # page.
        kept = re.match(r"/?wp-content/cache/[a-z_-]+/", rule.target) is not None and rule.flags <= _ENDS
        is_there = f"%{{DOCUMENT_ROOT}}/{rule.target.lstrip('/')}"
        if self._wordpress and kept and any(words[:2] == (is_there, "-f") for words in rule.asked):
            return harmless("WordPress shows the page itself, which it has kept in this file.")
        return None

    def _spared(self, rule: _Rule, later: Sequence[str]) -> Opinion | None:
        # [S=3] skips the next three rules for paths outside wp-includes. It makes no difference only if all three rules
        # are about wp-includes: if there are fewer rules, or others, it would exempt paths from a denial.
        if (rule.pattern, rule.target, rule.asked) != ("!^wp-includes/", "-", ()):
            return None
        if len(later) < _SPARED_RULES or not all(each.startswith("^wp-includes/") for each in later):
            return None
        return same("It spares the next rules, which say nothing of other paths.")

    def _files_first(self, rule: _Rule) -> Opinion | None:
        """A rule that ends the processing for paths of existing files."""
        ends = rule.pattern in _EVERYTHING and rule.target == "-" and rule.flags <= _ENDS and rule.flags & {"l", "end"}
        if not ends or not (self._situation.at_top or self._situation.php):
            return None
        tested = rule.about_files
        known = not rule.about_others and tested & {"-f", "-s"} and tested <= {"-f", "-s", "-l", "-d"}
        # Only "-f OR -d" is accepted: without OR the rule would be about paths that are both a file and a folder,
        # so about none.
        if not known or not _either(rule.asked):
            return None
        self._files_are_done = True
        self._folders_are_left = self._folders_are_left or "-d" in tested
        return same("nginx serves what is a file.")

    def _page(self, rule: _Rule) -> Opinion | None:
        """The page of a single-page application."""
        if not self._situation.at_top or not rule.flags <= _ENDS:
            return None
        skipped = literal(rule.pattern)
        if rule.target == "-" and not rule.asked and skipped is not None and page_of(skipped, base_is_top=True):
            return same("nginx serves the page where it is asked for.")
        page = page_of(rule.target, base_is_top=self._base_is_top)
        if rule.pattern not in _EVERYTHING or page is None:
            return None
        self._some_are_done = self._all_led = True
        if self._is_for_missing(rule) and all(is_not_about_page(words, page) for words in rule.about_others):
            return falling_back(page, self._situation)
        return None

    def _is_for_missing(self, rule: _Rule) -> bool:
        """Whether the rule's conditions leave out existing files, and leave out folders as nginx does."""
        known = all(len(words) == 2 for words in rule.asked if words[0] in _FILES)
        known = known and ("!-d" in rule.about_files or self._folders_are_left)
        return known and (self._files_are_done or {"!-f"} <= rule.about_files <= {"!-f", "!-d", "!-l"})

    def _front(self, rule: _Rule) -> Opinion | None:
        if not self._situation.php:
            return None
        if rule.pattern in (r"^index\.php$", "^index.php$") and rule.target == "-" and not rule.asked:
            return same("nginx runs index.php where it is asked for.") if rule.flags <= _ENDS else None
        fronted = self._at_index(rule) if self._front_controller else None
        found = fronted or self._led_to_program(rule) or self._left_alone(rule)
        if found is None and self._front_controller:
            return self._hidden_by_index(rule) or self._with_one_address(rule)
        return found

    def _at_index(self, rule: _Rule) -> Opinion | None:
        """What nginx does by itself: index.php at the top answers for paths without a file."""
        if rule.pattern not in _EVERYTHING or not _FRONT.fullmatch(rule.target) or not rule.flags <= _ENDS:
            return None
        known = self._is_for_missing(rule) and all(map(_is_not_itself, rule.about_others))
        known = known and not any(front.path == "/" for front in self._situation.fronts)
        known = known and not self._all_led
        # Noted even if the conditions of this rule are not understood: denials after it may no longer see all files, so
        # they must not be turned into denied paths.
        self._some_are_done = self._some_are_done or not _only_without_file(rule)
        self._all_led = True
        return same("nginx asks index.php for what is no file.") if known else None

    def _led_to_program(self, rule: _Rule) -> Opinion | None:
        """A rule that a front controller of the site can do."""
        if not (rule.flags <= _ENDS and rule.flags & {"l", "last", "end"}):
            return None
        if not set(modules(rule.directive)) <= {"mod_rewrite.c"}:
            return None
        serves_files = bool(rule.about_files) or self._files_are_done
        led = FrontRule(rule.pattern, rule.target, self._folder, self._base, rule.flags, serves_files)
        program = program_of(led)
        if program is None:
            return None
        beginnings = [begin for words in rule.about_others if (begin := _begins(words)) is not None]
        others = [words for words in rule.about_others if _begins(words) is None]
        if not _only_without_file(rule) and rule.pattern in _EVERYTHING:
            self._some_are_done = True
        all_led, self._all_led = self._all_led, self._all_led or (rule.pattern in _EVERYTHING and not beginnings)
        if len(beginnings) > 1 or not all(_is_not(program, words) for words in others):
            return None
        if any(len(words) > 2 for words in rule.asked if words[0] in _FILES):
            return None
        if rule.about_files and not {"!-f"} <= rule.about_files <= {"!-f", "!-d", "!-l"}:
            return None
        if serves_files and not ("!-d" in rule.about_files or self._folders_are_left):
            return None
        wishes = front_controllers(led, beginnings[0] if beginnings else None)
        # nginx takes the innermost path, and Apache the first rule.
        inner = any(wish.path.startswith(path.rstrip("/")) for wish in wishes for path in self._led)
        if not wishes or all_led or inner:
            return None
        # At the top nginx has this one anyway, in the form that `_at_index` knows.
        if self._front_controller and wishes[0] == Fronted("/", "/index.php", False, None, True):
            return None
        self._led.update(wish.path for wish in wishes)
        if self._situation.fronts.issuperset(wishes):
            return translated(f"{program} answers for it.")
        paths = ", ".join(wish.path for wish in wishes)
        return blocks(f"Add front controllers of the site: {program} for {paths}.", *wishes)

    def _hidden_by_index(self, rule: _Rule) -> Opinion | None:
        """A rule that shows a page of index.php where a file is that nobody must see."""
        if rule.asked or not rule.flags <= _ENDS - {"nc"} or not rule.flags & {"l", "last", "end"}:
            return None
        not_found = _NOT_FOUND.fullmatch(rule.target) is not None
        if not not_found and not _FRONT.fullmatch(rule.target):
            return None
        if only_hidden(rule.pattern):
            return same(_DOTFILES)
        if rule.pattern in _SPARING_CHALLENGES or _ONE_PAGE.fullmatch(rule.pattern):
            return same("nginx asks index.php for what is no file.")
        # Other endings may be those of pages, which have no file.
        if self._some_are_done or self._files_are_done:
            return None
        if not not_found and not _SOURCES_IN_FOLDER.fullmatch(rule.pattern):
            return None
        return denied_by_rule(rule.pattern, self._situation, pages_too=True)

    def _left_alone(self, rule: _Rule) -> Opinion | None:
        """A rule that ends the processing for folders: files there are served, and others are missing."""
        if rule.asked or rule.target != "-" or not rule.flags or not rule.flags <= {"l", "last", "end"}:
            return None
        if not _FOLDERS.fullmatch(rule.pattern):
            return None
        self._some_are_done = True
        return harmless("nginx serves the files of these folders, and asks index.php for what is missing there.")

    def _with_one_address(self, rule: _Rule) -> Opinion | None:
        """Redirects of frameworks that give a page one address only."""
        if self._without_slash(rule):
            return harmless("index.php is asked with the slash at the end, too: frameworks take both for one page.")
        if (rule.pattern, rule.target) in _TO_BASE and rule.flags <= {"r=301", "r=308", "l"}:
            return harmless("The same page is shown at both addresses.")
        return None

    def _without_slash(self, rule: _Rule) -> bool:
        """Laravel's redirect away from a slash at the end, in its former and its present form."""
        if rule.flags != {"l", "r=301"} or "!-d" not in rule.about_files:
            return False
        if (rule.pattern, rule.target) in (("^(.*)/$", "/$1"), ("^(.+)/$", "/$1")):
            return not rule.about_others
        return (rule.pattern, rule.target) == ("^", "%1") and rule.about_others == [("%{REQUEST_URI}", "(.+)/$")]

    def _canonical(self, rule: _Rule) -> Opinion | None:
        """A redirect to HTTPS, or to the primary name."""
        if rule.pattern not in _EVERYTHING or not rule.asked or not rule.flags <= {*_ENDS, "r", "ne", *_REDIRECTS}:
            return None
        # Within <IfModule> of another module the rule applies only on some servers, and the old host may not have been
        # one.
        if not set(modules(rule.directive)) <= {"mod_rewrite.c"}:
            return None
        place = re.fullmatch(r"(https?)://([^/]+?)(%\{REQUEST_URI\}|/\$1|/%\{REQUEST_URI\})", rule.target)
        if place is None:
            return None
        secure, host = place[1] == "https", place[2].lower()
        asked = rule.asked
        if host == "%1" and self._is_name_without_www(asked[-1]):
            asked, host = asked[:-1], self._situation.domain
        wishes: list[HttpsForced | NameRedirected] = []
        for words in asked:
            named = self._named(words)
            if secure and _plain_http(words):
                wishes.append(HttpsForced())
            elif host == self._situation.domain and named:
                wishes += [NameRedirected(name) for name in named]
            else:
                return None
        # Joined by AND, "HTTP and this name" redirects fewer requests than the two settings would. Several tests for
        # HTTP count as one.
        if not asked or (len(asked) > 1 and not _either(asked) and set(wishes) != {HttpsForced()}):
            return None
        # A rule that redirects to HTTPS at a fixed host also redirects every other name to that host, while the panel's
        # HTTPS setting keeps the name. The two are equal only if each other name is redirected to the primary name
        # already, or by this rule as well.
        if HttpsForced() in wishes and host not in ("%{http_host}", "%{server_name}"):
            told = {wish.name for wish in wishes if isinstance(wish, NameRedirected)}
            if host != self._situation.domain or not all(
                sent or name in told for name, sent in self._situation.names.items()
            ):
                return None
        missing = tuple(dict.fromkeys(wish for wish in wishes if not self._is_so(wish)))
        if not missing:
            return translated("Visitors are sent there.")
        what = [f"from {one.name} to {host}" if isinstance(one, NameRedirected) else _BY_HTTPS for one in missing]
        # In a subfolder the rule redirects only the folder's paths, but the settings are for the whole site: then there
        # is no wish.
        wished = missing if self._situation.at_top else ()
        return blocks(f"Have the site send its visitors {', and '.join(what)}.", *wished)

    def _is_name_without_www(self, words: tuple[str, ...]) -> bool:
        """Whether the condition holds for every name, and captures the primary one, for it and for it with `www.`."""
        if words[:2] not in (("%{HTTP_HOST}", r"^(?:www\.)?(.+)$"), ("%{HTTP_HOST}", r"^(?:www\.)?(.+)")):
            return False
        domain = self._situation.domain
        return not domain.startswith("www.") and self._situation.names.keys() <= {f"www.{domain}"}

    def _is_so(self, wish: HttpsForced | NameRedirected) -> bool:
        if isinstance(wish, HttpsForced):
            return self._situation.force_https
        return self._situation.names[wish.name]

    def _named(self, condition: tuple[str, ...]) -> list[str]:
        """Those of the site's other names that the condition matches; empty if they are not known."""
        tested, expected, *_ = condition
        names = self._situation.names
        if tested not in ("%{HTTP_HOST}", "%{SERVER_NAME}"):
            return []
        if expected == r"^www\.":
            return [name for name in names if name.startswith("www.")]
        match = re.fullmatch(r"(!?)\^((?:[A-Za-z0-9-]|\\?\.)+)\$", expected)
        if match is None:
            return []
        one = match[2].replace("\\", "").lower()
        if match[1]:
            # "Every host but this one" is accepted only for the primary name: otherwise the rule would redirect the
            # primary name as well.
            return list(names) if one == self._situation.domain else []
        return [one] if one in names else []

    def _redirect(self, rule: _Rule) -> Opinion | None:
        statuses = [int(flag.removeprefix("r=")) for flag in rule.flags if flag in _REDIRECTS]
        statuses += [302] if "r" in rule.flags else []
        path, below = literal(rule.pattern), False
        if path is None and re.fullmatch(r"\^(?:[A-Za-z0-9_/-]|\\\.)+", rule.pattern):
            # Without an anchor at its end it is about all paths that start so, as a redirect of the site with `below`.
            path, below = rule.pattern.removeprefix("^").replace("\\", ""), True
        if path is None or rule.asked or len(statuses) != 1 or not rule.flags <= {"l", "end", "r", "ne", *_REDIRECTS}:
            return None
        # Targets with `$1` or `%1` are patterns. "//host" is another host for a browser.
        if (
            not re.match(r"https?://[^/]|/(?!/)", rule.target)
            or re.search(r"[$%]", rule.target)
            or path.startswith("/")
        ):
            return None
        folder = "/".join(("", *self._situation.parts, path))
        return rewritten(folder, rule.target, statuses[0], rule.directive, self._situation, below=below)


_REDIRECTS: Final = {"r=301", "r=302", "r=307", "r=308"}


def _flags(arguments: tuple[str, ...]) -> frozenset[str]:
    written = arguments[2] if len(arguments) == 3 else "[]"
    return frozenset(flag.strip().lower() for flag in written.strip("[]").split(",") if flag.strip())


def _either(asked: Sequence[tuple[str, ...]]) -> bool:
    """Whether all of these conditions are joined by OR."""
    # The last condition's flag is ignored, because it joins the condition to nothing.
    return all(len(words) == 3 and "or" in words[2].lower().strip("[]").split(",") for words in asked[:-1])


def _is_not_itself(words: tuple[str, ...]) -> bool:
    """Whether the condition of a front controller only excludes the front controller itself, or icons that browsers
    request on their own."""
    if words == ("%{REQUEST_URI}", r"!^/(favicon\.ico|apple-touch-icon.*\.png)$", "[NC]"):
        return True
    known = (r"!^/index\.php", r"!^/index\.php$", "!=/favicon.ico", "!=/index.php")
    return len(words) == 2 and words[0] == "%{REQUEST_URI}" and words[1] in known


def _goes_on(directive: Directive) -> bool:
    """Whether the rule spares paths from later rules, has another server answer, or changes paths that later rules
    see."""
    ends = {"l", "last", "end", "r", *_REFUSES, *_REDIRECTS}
    spares = "".join(directive.arguments[1:2]) == "-" and _flags(directive.arguments).isdisjoint(_REFUSES)
    flags = _flags(directive.arguments)
    return spares or flags.isdisjoint(ends) or not flags.isdisjoint({"p", "proxy"})


def _only_without_file(rule: _Rule) -> bool:
    """Whether the rule is about paths alone that no file has."""
    return all(len(words) == 2 for words in rule.asked) and "!-f" in rule.about_files


def _begins(words: tuple[str, ...]) -> str | None:
    """The path, with a slash at its end, with which the address has to start by this condition; None if it is about
    something else."""
    if len(words) != 2 or words[0] != "%{REQUEST_URI}":
        return None
    match = re.fullmatch(r"\^((?:/(?:[\w~@+,-]|\\?\.)+)+/)", words[1])
    return None if match is None else match[1].replace("\\", "")


_OF_PROCESSWIRE: Final = {
    ("%{REQUEST_URI}", "^/~?[-_.a-zA-Z0-9/]*$"),
    ("%{REQUEST_FILENAME}", r"!(favicon\.ico|robots\.txt)"),
}
"""Names that no page has: where nothing has them, Apache says so itself."""
_NO_PAGES: Final = re.compile(r"!(?:\.\*)?\\\.\((?:[a-z0-9]+\|)*[a-z0-9]+\)\$?")
"""Paths that end like pictures and styles: where such a file is missing, Apache says so itself."""


def _is_not(program: str, words: tuple[str, ...]) -> bool:
    """Whether the condition only excludes the program itself, icons that browsers request on their own, or files that
    are missing."""
    if words in _OF_PROCESSWIRE:
        return True
    if words[0] != "%{REQUEST_URI}" or len(words) < 2:
        return False
    if _NO_PAGES.fullmatch(words[1]) and words[2:] in ((), ("[NC]",)):
        return True
    if len(words) != 2:
        return False
    return words[1].replace("\\", "").removesuffix("$") in (f"!^{program}", f"!={program}", "!=/favicon.ico")


def _is_for_trace(rule: _Rule) -> bool:
    if len(rule.asked) != 1 or rule.pattern not in _EVERYTHING or rule.target != "-":
        return False
    tested, expected, *_ = rule.asked[0]
    return tested == "%{REQUEST_METHOD}" and expected in _TRACE and rule.flags <= {"f", "l", "last", "r=403", "r=405"}


def _plain_http(condition: tuple[str, ...]) -> bool:
    tested, expected, *_ = condition
    if tested == "%{HTTPS}":
        return expected.lower() in ("off", "!=on", "!on", "^off$", "=off")
    if tested == "%{HTTP:X-Forwarded-Proto}":
        return expected.lower() in ("!https", "!=https", "=http", "^http$")
    return (tested, expected) in (("%{SERVER_PORT}", "80"), ("%{SERVER_PORT}", "^80$"), ("%{SERVER_PORT}", "!^443$"))
