"""Names that contain a hash of their content, as build tools write them, and names that only look like it.

After public repositories: logs of builds, lists that service workers load, and pages that were built.
"""

from __future__ import annotations

import re

import pytest

from svc_webhost.assets import HASHED


@pytest.mark.parametrize(
    "path",
    [
        # Vite, by 5 and later, and by 2 to 4; Laravel's folder.
        *("/assets/index-DpLXM2uR.js", "/assets/index-BhoGQRaA.js", "/assets/index-Ca5Toeqw.css"),
        *("/assets/index-cIKaMc-a.js", "/assets/SettingsScreen-D2K-BUnd.js", "/assets/index-C7_IrBYg.css"),
        *("/assets/index-hyzAvHeA.js", "/build/assets/app-DNxiirP_.js", "/build/assets/app-HC-_aOh9.css"),
        *("/build/assets/app-c6182a08.css", "/build/assets/app-71fe424d.js"),
        # SvelteKit, Nuxt, Astro, VitePress.
        *("/_app/immutable/nodes/4.Ce1Ny_a_.js", "/_app/immutable/chunks/DsnmJJEf.js", "/_app/immutable/assets/5.css"),
        *("/_nuxt/entry.337d54a5.css", "/_nuxt/entry-5a75029a.mjs", "/_nuxt/swiper-vue.C8kddlLw.css"),
        *("/_nuxt/eco-friend.3cab6412.jpg", "/_nuxt/BZa1c2d3.js", "/_astro/hoisted.Dq4x9k2a.js"),
        *("/assets/index.md.BxQ1w2E3.lean.js", "/assets/app.BxQ1w2E3.js"),
        # Next, also below a path of its own.
        *("/_next/static/chunks/main-cd55c576c37ced5a.js", "/_next/static/chunks/651.bd3ee586694c39ed.js"),
        *("/_next/static/chunks/e58627ac-e3d73c64776bb36b.js", "/_next/static/media/e4af272ccee01ff0-s.p.woff2"),
        *("/_next/static/H9y0WYSTj9FSqQzq5gIHG/_ssgManifest.js", "/shop/_next/static/css/897735cef16f23b1.css"),
        # Create React App, Vue CLI, Angular by webpack, Gatsby.
        *("/static/js/main.bb9c9b53.js", "/static/css/main.9363e7f5.css", "/static/js/2.9363e7f5.chunk.js"),
        *("/static/media/group.d619c56b5a9c096c6e45.png", "/static/css/main.9363e7f5.css.map"),
        *(
            "/js/chunk-vendors.e5d2513f.js",
            "/css/app.dda347cd.css",
            "/img/logo.82b9c7a5.png",
            "/fonts/a.8fd1c2b3.woff2",
        ),
        *("/main.bd93d8a612798d9d.js", "/styles.9ba268f08602b4713e08.css", "/polyfills.bf99d438b005d57b2b31.js"),
        # Angular by esbuild, Remix.
        *("/main-7TN7T4U2.js", "/styles-XKSAKVMP.css", "/polyfills-B6TNHZQ6.js", "/styles-AOUVNFQF.css"),
        # Django, Rails, Hugo, Rollup's plugin.
        *("/static/admin/css/base.27e20196a850.css", "/main.07d2bf0d12655d9f51c0637718da4889.js"),
        "/assets/application-908e25f4bf641868d8683022a5b62f54908e25f4bf641868d8683022a5b62f54.css",
        "/css/style.min.908e25f4bf641868d8683022a5b62f54908e25f4bf641868d8683022a5b62f54.css",
    ],
)
def test_what_a_bundler_wrote_is_recognised(path: str) -> None:
    assert re.search(HASHED, path)


@pytest.mark.parametrize(
    "path",
    [
        # Versions, dates, sizes, words.
        *("/js/jquery-3.7.1.min.js", "/js/jquery.min.js", "/js/bootstrap.bundle.min.js", "/js/jquery-migrate.min.js"),
        *("/photo-20240101.jpg", "/photo-1024x768.jpg", "/photo-1536x1024.jpg", "/scan-20240101123000.png"),
        *("/js/app-settings.js", "/js/app-MainPage.js", "/css/style-portrait.css", "/js/chunk-vendors.js"),
        *(
            "/js/i18n.de-DE.js",
            "/js/moment-with-locales.js",
            "/js/lodash.core.js",
            "/js/feedface.js",
            "/js/x-deadbeef.js",
        ),
        *(
            "/css/deadbeef.css",
            "/css/bed-facade.css",
            "/favicon.ico",
            "/logo.png",
            "/js/app.js",
            "/js/a-1234567a.min.php",
        ),
        # What cameras, phones and people write.
        *("/x-IMG_1234.jpg", "/beach-DSC_0001.jpg", "/trip-P1010101.jpg", "/team-20240101_1234567.jpg"),
        *("/WhatsApp-Image-2024-01-01.jpeg", "/Screenshot-2024-01-01.png", "/logo-HomePage.png", "/plan-FINAL_V2.png"),
        # Pages and documents, which are replaced under their names, and what programs read.
        *(
            "/index.html",
            "/",
            "/blog-4f2d5a1b.html",
            "/report-deadbeef.pdf",
            "/report-4f2d5a1b.pdf",
            "/a.4f2d5a1b.json",
        ),
        *(
            "/_nuxt/builds/latest.json",
            "/_nuxt/",
            "/_next/static/",
            "/build/manifest.json",
            "/sw.js",
            "/my_next/static/a",
        ),
        *("/manifest.4f2d5a1b.webmanifest", "/4f2d5a1b.js", "/a.4f2d5a1b.js/", "/a.4f2d5a1b.js\n", "/a-4f2d5a1.js"),
        # Hashes in capitals are not hexadecimal as bundlers write it.
        "/guid-6B29FC40-CA47-1067-B31D-00DD010662DA.png",
    ],
)
def test_what_may_change_under_its_name_is_not(path: str) -> None:
    assert not re.search(HASHED, path)
