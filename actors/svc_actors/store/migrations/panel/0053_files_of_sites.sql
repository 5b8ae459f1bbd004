ALTER TABLE sites
    -- The path of the page that answers for paths without a file; NULL: none does, or index.php on a site with PHP.
    ADD COLUMN fallback_page text,
    -- Whether browsers may keep files whose name has a hash of their content.
    ADD COLUMN cache_assets boolean NOT NULL DEFAULT false,
    -- Whether files of HTML are sent as UTF-8; false: they say their character set themselves.
    ADD COLUMN utf8_pages boolean NOT NULL DEFAULT false;
