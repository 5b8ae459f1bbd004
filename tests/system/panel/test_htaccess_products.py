"""What known products say in their .htaccess files, at Apache 2.4 and at nginx as it is configured for a site, with the
same PHP behind both.

A product of which nothing blocks, once the panel was told what is wished for, is answered the same: each difference
has its directive in the product's file. Of one that blocks, so are the lines that do not; and whatever else differs is
due to a line that blocks. Nothing that Apache denies is served beside lines that do not block.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

import pytest

from svc_webhost.apache.htaccess import Directive
from svc_webhost.htaccess.judging import DirectiveVerdict
from svc_webhost.htaccess.verdicts import Verdict
from tests.support.figures import report_figure
from tests.support.htaccess_oracle import Case, Compared, Difference, ask_both, compare, corpus, domain_of
from tests.support.nginx import FIRST, nginx_sites

pytestmark = [pytest.mark.system, pytest.mark.isolated]

FILES: Final = sorted((Path(__file__).parent / "htaccess").glob("*.toml"))
READY: Final = {
    *("wordpress", "wordpress-https", "w3-total-cache", "wp-super-cache", "all-in-one-security", "cpanel-php"),
    *("laravel", "symfony", "slim", "moved", "https", "one-name", "craft", "dokuwiki", "phpbb", "uploads"),
    *("vue", "react", "angular", "fallback"),
    *("bludit", "bolt", "cakephp", "canonical", "codeigniter", "flarum", "kanboard", "kirby", "magento", "matomo"),
    *("akismet", "mautic", "modx", "pagekit", "prestashop-pictures", "thinkphp", "wordpress-in-folder", "yourls"),
}
USES: Final = {
    *("basic-auth", "boilerplate", "canonical", "cpanel-php", "firewall-6g", "hotlink", "https", "moved", "one-name"),
    *("vue", "react", "angular", "fallback"),
}
"""Common uses, of no PHP product's own."""


NONE: Final = "none that blocks"


def products() -> list[Case]:
    """Each as it is once the panel was told what its files wish for."""
    domains = [domain_of(FIRST + place) for place in range(len(FILES))]
    return [corpus(file, domain).translated(domain) for file, domain in zip(FILES, domains, strict=True)]


def blocking(cases: list[Case]) -> dict[str, list[tuple[PurePosixPath, DirectiveVerdict]]]:
    return {case.name: case.blocking(domain_of(FIRST + place)) for place, case in enumerate(cases)}


def test_what_products_ship_that_nginx_can_do_blocks_nothing() -> None:
    cases = products()
    judged = [case.judged(domain_of(FIRST + place)) for place, case in enumerate(cases)]
    every = verdicts_of(judged)
    of_products = [files for case, files in zip(cases, judged, strict=True) if case.name not in USES]
    products_alone = verdicts_of(of_products)

    report_figure(f".htaccess files of {len(cases)} products and common uses: {_share(every)}")
    report_figure(f".htaccess files of {len(of_products)} products alone: {_share(products_alone)}")
    assert products_alone[Verdict.BLOCKS] <= products_alone.total() // 10
    assert {name for name, lines in blocking(cases).items() if not lines} == READY


def verdicts_of(judged: Iterable[Mapping[PurePosixPath, Sequence[DirectiveVerdict]]]) -> Counter[Verdict]:
    return Counter(one.opinion.verdict for folders in judged for lines in folders.values() for one in lines)


def _share(verdicts: Counter[Verdict]) -> str:
    served = verdicts.total() - verdicts[Verdict.BLOCKS]
    each = ", ".join(f"{verdicts[verdict]} {verdict.value}" for verdict in Verdict)
    return f"{served} of {verdicts.total()} lines do not block ({each})"


async def test_lines_that_do_not_block_are_answered_as_apache_does() -> None:
    cases = [case.without_what_blocks(domain_of(FIRST + place)) for place, case in enumerate(products())]
    by_product = defaultdict[str, Compared](Compared)

    with nginx_sites() as nginx:
        for case, answered in zip(cases, await ask_both(nginx, cases, FIRST), strict=True):
            found = by_product[case.name]
            found.answers += len(answered)
            found.differences += [Difference(case, asked, *both) for asked, *both in answered if both[0] != both[1]]

    for name, found in by_product.items():
        report_figure(f".htaccess of {name}{'' if name in READY else ', without what blocks'}: {found}")
    assert [leak for found in by_product.values() for leak in found.leaks] == []
    assert [other for found in by_product.values() for other in found.unexplained] == []
    for case in cases:
        assert case.differs.keys() == {
            expression for expression, directive in case.differs.items() if directive in by_product[case.name].reasons
        }


async def test_whatever_differs_beside_lines_that_block_is_due_to_one_of_them() -> None:
    places = [(place, case) for place, case in enumerate(products()) if case.name not in READY]
    cases = [case for _, case in places]
    whole, due = Compared(), Compared()

    with nginx_sites() as nginx:
        await compare(nginx, cases, FIRST, whole)
        differing = defaultdict[str, set[str]](set)
        for each in whole.differences:
            differing[each.case.name].add(each.asked.path)
        alone = [
            (directive, replace(case, only=frozenset(differing[case.name.partition(" ")[0]])))
            for place, product in places
            for directive, case in _each_alone(product, domain_of(FIRST + place))
        ]
        await compare(nginx, [case for _, case in alone], FIRST + len(cases), due)

    directives = {case.name: directive for directive, case in alone}
    due_to = dict[tuple[str, str], str]()
    for each in due.differences:
        due_to.setdefault((each.case.name.partition(" ")[0], _path(each)), directives[each.case.name])
    listed = defaultdict[str, list[str]](list)
    for each in whole.differences:
        if not each.why or each.leaks:
            listed[f"{each.case.name}: {due_to.get((each.case.name, _path(each)), '')}"].append(_path(each))
    missed = {directive: paths for directive, paths in listed.items() if not directive.endswith(f": {NONE}")}
    for directive, paths in missed.items():
        report_figure(f".htaccess of {directive} blocks, and is missed at {len(paths)} addresses: {paths[0]}")
    assert [directive for directive in missed if directive.endswith(": ")] == []


def _path(difference: Difference) -> str:
    asked = difference.asked
    return f"{asked.path}{''.join(f' {name}: {value}' for name, value in asked.headers)}"


def _each_alone(case: Case, domain: str) -> list[tuple[str, Case]]:
    """The site with none of the rules that block, and with each of them alone, beside all that does not block."""
    groups: dict[object, list[tuple[PurePosixPath, Directive]]] = {}
    blocking = case.blocking(domain)
    for folder, one in blocking:
        rule = one.directive.name in ("rewritecond", "rewriterule")
        key = id(one.opinion) if rule else (folder, one.directive.sections)
        groups.setdefault(key, []).append((folder, one.directive))
    found = [(NONE, replace(case.without_what_blocks(domain), name=f"{case.name} -"))]
    for number, group in enumerate(groups.values()):
        others = defaultdict[PurePosixPath, list[Directive]](list)
        for folder, one in blocking:
            if (folder, one.directive) not in group:
                others[folder].append(one.directive)
        alone = case.without(others)
        found.append((group[-1][1].text, replace(alone, name=f"{case.name} {number}")))
    return found
