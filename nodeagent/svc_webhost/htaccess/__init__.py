"""Judges a site's .htaccess files, which nginx does not read: what does each line mean for the site here?

The files are a customer's texts. They are parsed and judged only in the confined helper (`confined.serve`), never in
the core: in the core's one thread a line of 3 KB once cost everybody 31 seconds. So the package imports the standard
library only, and the time of each function is proportional to the length of the file.

Rejected:

- To translate lines into rules of nginx. A rule that denies slightly less than Apache's is worse than a verdict that
  the line blocks.
- To understand rewrite rules one by one. What a rule does follows from the rules around it too, so they are known by
  their whole text, in the forms that products ship.

tests/system/panel/test_htaccess_oracle.py compares the verdicts with Apache 2.4 and nginx over generated files.

Why: docs/decisions/0043-htaccess-is-judged.md.
"""
