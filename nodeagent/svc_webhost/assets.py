"""Names of the files that pages load: scripts, styles, pictures, fonts.

`ASSETS`: a missing file of this kind is answered with 404, even on a site that answers every other path with its page.
A browser that gets a page instead of a script refuses it and shows nothing, which looks like a fault of the program.
Caches would also keep the page under the script's name.

`HASHED`: names that contain a hash of their content, as bundlers write them. The file of such a name never changes, so
browsers need not ask for it again. If a name only looked like that, browsers would keep the file for a year and miss
its next version. So letters and digits count as a hash only if they can hardly be anything else:

- hexadecimal, from 8 digits on, with a digit and a letter: neither a date (`20240101`) nor a word (`deadbeef`);
- in names of scripts and styles, 8 letters, digits, `-` and `_` as Rollup writes them (Vite, Nuxt, SvelteKit,
  VitePress), or 8 capitals and digits as esbuild does (Angular, Remix), with a capital and a digit, or three capitals:
  not `MainPage`;
- in names of pictures, fonts and media, the same 8 with a capital, a small letter and a digit: neither `1024x768` nor
  `IMG_1234`.

A few hashes are not recognised, which costs a request each. Folders into which bundlers put nothing but such files
count whatever the names are.

Rejected: every script and style below a folder `assets`, as guides say. Unless a bundler wrote them, its files have the
same names in the next release.

This module imports the standard library alone, since the judge of .htaccess files compares with `ASSETS`.
"""

from __future__ import annotations

from typing import Final

_PROGRAMS: Final = "js|mjs|cjs|css"
_MEDIA: Final = (
    "png|jpg|jpeg|gif|webp|avif|svg|ico|cur|bmp|jxl|heic"
    "|woff2|woff|ttf|otf|eot"
    "|mp4|webm|ogv|mov|m4v|mp3|ogg|oga|wav|flac|m4a|aac|opus|vtt"
)
ASSETS: Final = f"{_PROGRAMS}|{_MEDIA}|map|wasm|json|webmanifest|xml|txt|pdf|zip|gz"
"""Endings, as alternatives of an expression. Programs, robots and people read the last of these: a page with status 200
instead of robots.txt would be taken for its text."""

_HEX: Final = "(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]"
_EIGHT: Final = "[A-Za-z0-9_-]{8}"
_CAPITAL: Final = "(?=[a-z0-9_-]{0,7}[A-Z])"
_SMALL: Final = "(?=[A-Z0-9_-]{0,7}[a-z])"
_DIGIT: Final = "(?=[A-Za-z_-]{0,7}[0-9])"
_THREE_CAPITALS: Final = "(?=(?:[a-z0-9_-]{0,7}[A-Z]){3})"
_AFTER: Final = r"(?:\.(?:chunk|min|bundle|module|lean|async|esm))*"
"""What may follow the hash: `main.4f2d5a1b.chunk.js`."""
_ONLY_HASHED: Final = "_next/static|_app/immutable|_nuxt|_astro"
"""Folders of Next, SvelteKit, Nuxt and Astro."""
_END: Final = "(?!.)"
HASHED: Final = (
    "(?s)(?:"
    rf"/(?:{_ONLY_HASHED})/.+\.(?:{_PROGRAMS}|{_MEDIA}|map|wasm)"
    rf"|(?:[.-]{_HEX}{{8,128}}|/{_HEX}{{16,128}}){_AFTER}\.(?:(?:js|mjs|css)\.map|{_PROGRAMS}|{_MEDIA}|wasm)"
    rf"|[.-]{_CAPITAL}(?:{_DIGIT}|{_THREE_CAPITALS}){_EIGHT}{_AFTER}\.(?:js|mjs|css)(?:\.map)?"
    rf"|[.-]{_CAPITAL}{_SMALL}{_DIGIT}{_EIGHT}\.(?:{_MEDIA}|wasm)"
    f"){_END}"
)
"""An expression that nginx and Python understand in the same way; see above."""
