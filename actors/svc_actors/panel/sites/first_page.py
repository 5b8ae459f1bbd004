"""The page that visitors of a new site see until its owner uploads content."""

from __future__ import annotations

from html import escape

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>{domain}</title>
<style>
  body {{ font: 1rem/1.5 system-ui, sans-serif; margin: 20vh auto; max-width: 32rem; padding: 0 1rem; color: #222 }}
  @media (prefers-color-scheme: dark) {{ body {{ background: #161616; color: #ddd }} }}
</style>
<h1>{domain}</h1>
<p>This site is ready. Its owner has not put anything here yet: this page is <code>public/index.html</code>.</p>
</html>
"""


def first_page(domain: str) -> str:
    return _PAGE.format(domain=escape(domain))
