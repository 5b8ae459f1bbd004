"""Texts of 256 KiB that took a parser of `.htaccess` files minutes, or would take one whose time is quadratic."""

from __future__ import annotations

KIB = 1024
SIZE = 256 * KIB


def filled(piece: str, size: int = SIZE) -> str:
    return (piece * (size // len(piece) + 1))[:size]


HTACCESS = {
    "a tag of blanks": "<a" + " " * (SIZE - 4) + "x\n",
    "many tags of blanks": filled("<a" + " " * 3000 + "x\n"),
    "a rule of letters": f"RewriteRule ^{'a' * SIZE}$ - [F]",
    "a section of letters": f'<FilesMatch "^{"a" * SIZE}$">\nRequire all denied\n</FilesMatch>',
    "a section of letters around many lines": (
        f'<FilesMatch "^{"a" * (SIZE // 2)}$">\n' + filled("Require all denied\n", SIZE // 2)
    ),
    "groups in groups": f"RewriteRule {'(' * (SIZE // 2)}a{')' * (SIZE // 2)} - [F]",
    "groups of nothing": f"RewriteRule ^{'()' * (SIZE // 2)}$ - [F]",
    "choices": filled(f"RewriteRule ^({'|'.join(f'a{n}' for n in range(60))}){'b' * 200}$ - [F]\n"),
    "choices after choices": filled(f"RewriteRule ^{'(a|b)?' * 40}$ - [F]\n"),
    "one choice of thousands": f"RewriteRule ^({'|'.join('a' for _ in range(SIZE // 2))})$ - [F]",
    "pages that might be": filled("RewriteRule ^(i|n|d|e|x|p|h|in|nd|de|ex|ind|nde|dex)$ - [F]\n"),
    "brackets": f"RewriteRule {'[' * SIZE} - [F]",
    "classes": f"RewriteRule {'[a]' * (SIZE // 3)}! - [F]",
    "denials in one section": '<FilesMatch "\\.bak$">\n' + filled("Deny from all\n"),
    "denials of old and new": filled('<Files a>\n<IfModule !mod_authz_core.c>\nDeny from all\n</IfModule>\n</Files>\n'),
    "sections of one denial": "".join(
        f"<IfModule !mod_authz_core.c>\n<Files a{number}>\nDeny from all\n</Files>\n</IfModule>\n"
        for number in range(SIZE // 75)
    ),
    "passwords": filled("AuthType Basic\nAuthUserFile /a\nRequire valid-user\n"),
    "passwords of sections": "".join(
        f"<IfModule a{number}>\nAuthType Basic\nRequire user a\n</IfModule>\n" for number in range(SIZE // 55)
    ),
    "requirements": filled("Require all denied\n"),
    "orders": filled("Order a\n"),
    "sections without end": filled("<IfModule a>\n"),
    "sections around lines": "<IfModule a>\n" * 266 + filled("Order a\n"),
    "a module of letters": f"<IfModule {'a' * (SIZE // 2)}>\n" + filled("RewriteRule a b\n", SIZE // 2),
    "rules": filled("RewriteRule a b [F]\n"),
    "conditions": (
        filled("RewriteCond %{HTTP_HOST} ^www\\. [OR]\n") + "\nRewriteRule ^ https://shop.example%{REQUEST_URI} [R]"
    ),
    "conditions of files": filled("RewriteCond %{REQUEST_FILENAME} !-f\n") + "\nRewriteRule . /index.php [L]",
    "flags": f"RewriteRule a b [{'f,' * (SIZE // 2)}]",
    "redirects": filled("Redirect /a /b\n"),
    "settings of PHP": filled("php_value memory_limit 512M\n"),
    "pages of folders": filled("DirectoryIndex index.html\n") + filled("DirectoryIndex index.htm index.php\n"),
    "quotes without end": filled('a "\\" \'\\\' '),
    "quotes in quotes": filled("\"' '\" "),
    "lines that go on": filled("a\\\n"),
    "empty lines": "\n" * SIZE,
    "options": f"Options {'-a ' * (SIZE // 3)}",
    "an endless name of a section": "<" + "a" * SIZE,
}  # fmt: skip
