-- What of a site's record the web server has been given. Each change makes `wanted` one higher; `served` is the `wanted` that
-- the web server took last, and where it is lower the change is handed over again.
ALTER TABLE sites
    ADD COLUMN wanted integer NOT NULL DEFAULT 1,
    ADD COLUMN served integer NOT NULL DEFAULT 0,
    -- What the name of proxy_target was found to be when it was set: the web server connects nowhere else.
    ADD COLUMN proxy_addresses inet[] NOT NULL DEFAULT '{}';
CREATE INDEX sites_unserved ON sites (id) WHERE served < wanted;

-- Also for every path that begins with `path`.
ALTER TABLE site_redirects ADD COLUMN below boolean NOT NULL DEFAULT false;
ALTER TABLE site_redirects DROP CONSTRAINT site_redirects_site_id_path_key;
ALTER TABLE site_redirects ADD UNIQUE (site_id, path, below);
