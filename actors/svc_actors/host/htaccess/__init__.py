"""What becomes of a site's .htaccess files, which nginx does not read.

Texts of a tenant are parsed and judged here: only by the confined helper (`confined.serve`), never in the core. The
standard library alone. Each function takes a time that grows with the length of the file alone.
"""
