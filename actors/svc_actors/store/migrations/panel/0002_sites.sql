-- Sites: what visitors open, under which names, and where it is sent on. A row is a site that exists; deletion removes it.

-- A site's number names its account (s1001) and its folders. It is never given twice: files, processes or records of a site
-- that was deleted can never be taken for those of another.
CREATE SEQUENCE site_numbers AS integer MINVALUE 1001 NO CYCLE;

CREATE TABLE sites (
    id                  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    number              integer NOT NULL UNIQUE DEFAULT nextval('site_numbers'),
    owner_id            uuid NOT NULL REFERENCES users,
    -- The primary of its names.
    domain              text NOT NULL,
    type                text NOT NULL CHECK (type IN ('static', 'php', 'wordpress', 'app', 'proxy')),
    status              text NOT NULL DEFAULT 'creating'
                        CHECK (status IN ('creating', 'active', 'suspended', 'deleting', 'failed')),
    -- Why it is suspended or has failed.
    reason              text,
    -- Who is suspended by an administrator cannot end that themselves.
    suspended_by        text CHECK (suspended_by IN ('owner', 'administrator')),
    -- Where a site of the type proxy is served from: an URL without path.
    proxy_target        text,
    php                 jsonb NOT NULL DEFAULT '{}',
    -- As much as there is, where NULL.
    cpu_percent         integer CHECK (cpu_percent > 0),
    memory_mib          integer CHECK (memory_mib > 0),
    processes           integer CHECK (processes > 0),
    disk_mib            integer CHECK (disk_mib > 0),
    force_https         boolean NOT NULL DEFAULT false,
    created_at          timestamptz NOT NULL DEFAULT now(),
    CHECK ((type = 'proxy') = (proxy_target IS NOT NULL)),
    CHECK ((status = 'suspended') <= (suspended_by IS NOT NULL))
);
CREATE INDEX sites_created ON sites (created_at, id);
CREATE INDEX sites_domain ON sites (domain, id);
CREATE INDEX sites_owner ON sites (owner_id, domain, id);
CREATE INDEX sites_status ON sites (status, id);

-- Every name of every site, its primary among them: one name leads to one site.
CREATE TABLE site_domains (
    id                  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    site_id             uuid NOT NULL REFERENCES sites ON DELETE CASCADE,
    name                text NOT NULL UNIQUE CHECK (name = lower(name)),
    -- The name below a public suffix that it belongs to: shop.example.co.uk is of example.co.uk. Who has one name of it
    -- keeps others out of all of them.
    registrable         text NOT NULL,
    -- Visitors of this name are sent to the primary.
    redirect_to_primary boolean NOT NULL DEFAULT false,
    created_at          timestamptz NOT NULL DEFAULT now(),
    UNIQUE (site_id, name)
);
CREATE INDEX site_domains_registrable ON site_domains (registrable);
ALTER TABLE sites ADD CONSTRAINT sites_domain_is_a_name
    FOREIGN KEY (id, domain) REFERENCES site_domains (site_id, name) DEFERRABLE INITIALLY DEFERRED;

CREATE TABLE site_redirects (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    site_id    uuid NOT NULL REFERENCES sites ON DELETE CASCADE,
    path       text NOT NULL,
    target     text NOT NULL,
    status     integer NOT NULL CHECK (status IN (301, 302, 307, 308)),
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (site_id, path)
);
