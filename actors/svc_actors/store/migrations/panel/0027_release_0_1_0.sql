-- The tables of the panel, as of release 0.1.0. Stands for the migrations 0001 to 0027 (svc_actors/store/migrate.py).

-- Which installation this is: made once, and named in every webhook (hosting-panel-api.md, Payload).
CREATE TABLE panel_installation (
    one          boolean PRIMARY KEY DEFAULT true CHECK (one),
    install_id   uuid NOT NULL DEFAULT gen_random_uuid(),
    installed_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO panel_installation DEFAULT VALUES;

-- What mail and pages call a panel until its administrator says otherwise.
INSERT INTO settings (name, value) VALUES ('service_name', '"Hosting"') ON CONFLICT (name) DO NOTHING;

------------------------------------------------------------------------------------------------------------------------
-- Sites

-- What visitors open, under which names, and where it is sent on. A row is a site that exists; deletion removes it.

-- A site's number names its account (s1001) and its folders. It is never given twice: files, processes or records of a site
-- that was deleted can never be taken for those of another.
CREATE SEQUENCE site_numbers AS integer MINVALUE 1001 NO CYCLE;

CREATE TABLE sites (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    number          integer NOT NULL UNIQUE DEFAULT nextval('site_numbers'),
    owner_id        uuid NOT NULL REFERENCES users,
    -- The primary of its names.
    domain          text NOT NULL,
    type            text NOT NULL CHECK (type IN ('static', 'php', 'wordpress', 'app', 'proxy')),
    status          text NOT NULL DEFAULT 'creating'
                    CHECK (status IN ('creating', 'active', 'suspended', 'deleting', 'failed')),
    -- Why it is suspended or has failed.
    reason          text,
    -- A suspension by an administrator cannot be ended by the owner. A site that was suspended with its account comes back
    -- with it.
    suspended_by    text CHECK (suspended_by IN ('owner', 'administrator', 'account')),
    -- Where a site of the type proxy is served from: an URL without path.
    proxy_target    text,
    php             jsonb NOT NULL DEFAULT '{}',
    -- NULL: as much as there is.
    cpu_percent     integer CHECK (cpu_percent > 0),
    memory_mib      integer CHECK (memory_mib > 0),
    processes       integer CHECK (processes > 0),
    disk_mib        integer CHECK (disk_mib > 0),
    force_https     boolean NOT NULL DEFAULT false,
    created_at      timestamptz NOT NULL DEFAULT now(),

    -- What of the record the web server has been given. Each change makes `wanted` one higher; `served` is the `wanted` that
    -- the web server took last, and while it is lower the change is handed over again.
    wanted          integer NOT NULL DEFAULT 1,
    served          integer NOT NULL DEFAULT 0,
    -- What the name of proxy_target was found to be when it was set: the web server connects nowhere else.
    proxy_addresses inet[] NOT NULL DEFAULT '{}',

    -- Whether access accounts may have a shell, as an administrator has said of this site; NULL: as the plan says.
    shell           boolean,

    CHECK ((type = 'proxy') = (proxy_target IS NOT NULL)),
    CHECK ((status = 'suspended') <= (suspended_by IS NOT NULL))
);
CREATE INDEX sites_created ON sites (created_at, id);
CREATE INDEX sites_domain ON sites (domain, id);
CREATE INDEX sites_owner ON sites (owner_id, domain, id);
CREATE INDEX sites_status ON sites (status, id);
CREATE INDEX sites_unserved ON sites (id) WHERE served < wanted;

-- Every name of every site, its primary among them: one name leads to one site.
CREATE TABLE site_domains (
    id                  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    site_id             uuid NOT NULL REFERENCES sites ON DELETE CASCADE,
    name                text NOT NULL UNIQUE CHECK (name = lower(name)),
    -- The name below a public suffix that it belongs to: shop.example.co.uk is of example.co.uk. The owner of one name of it
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
    -- Also for every path that begins with `path`.
    below      boolean NOT NULL DEFAULT false,
    UNIQUE (site_id, path, below)
);

-- The certificate that a site is served with. One by ACME is ordered and renewed by its row of acme_certificates, whose name
-- is 'site:' and the site's id; this is the one that was handed to the web server, of either source.
CREATE TABLE site_certificates (
    site_id      uuid PRIMARY KEY REFERENCES sites ON DELETE CASCADE,
    -- Uploaded ones are replaced by the customer alone.
    source       text NOT NULL CHECK (source IN ('acme', 'uploaded')),
    names        text[] NOT NULL,
    issuer       text NOT NULL,
    not_before   timestamptz NOT NULL,
    not_after    timestamptz NOT NULL,
    -- SHA-256 of the certificate, in hex: names the folder of its files.
    fingerprint  text NOT NULL CHECK (fingerprint ~ '^[0-9a-f]{64}$'),
    chain        text NOT NULL,
    sealed_key   bytea NOT NULL,
    installed_at timestamptz NOT NULL DEFAULT now(),
    -- What a handshake with this server showed last.
    checked_at   timestamptz,
    served       boolean
);

-- Handovers of sites that are not whole yet: what opened the site to its owner before may open it still.
CREATE TABLE site_handovers (
    site_id                   uuid PRIMARY KEY REFERENCES sites ON DELETE CASCADE,
    -- Counts those that were ordered while one was pending.
    generation                integer NOT NULL DEFAULT 1,
    wordpress_renewed         boolean NOT NULL DEFAULT false,
    failures                  integer NOT NULL DEFAULT 0,
    next_attempt_at           timestamptz NOT NULL DEFAULT now(),
    -- One password a handover for the database of a WordPress, however often it is tried. A password that was set by
    -- somebody else since is kept.
    sealed_wordpress_password bytea
);

------------------------------------------------------------------------------------------------------------------------
-- What sites run, and how their files are reached

-- Applications of sites of the type app: an HTTP server of the customer's own.
CREATE TABLE site_apps (
    site_id        uuid PRIMARY KEY REFERENCES sites ON DELETE CASCADE,
    runtime        text NOT NULL CHECK (runtime IN ('python', 'node')),
    -- Between a Python application and its server; of node it says nothing.
    interface      text NOT NULL CHECK (interface IN ('wsgi', 'asgi')),
    -- module:callable, or of node a script beneath `folder`, which is beneath the site's home.
    entry          text NOT NULL,
    folder         text NOT NULL,
    -- Answered with less than 500 before visitors come to a release.
    health_path    text NOT NULL,
    -- Each start is a release with a number of its own.
    last_release   integer NOT NULL DEFAULT 0,
    -- The one that is to run; NULL: none.
    wanted_release integer,
    -- The one that visitors come to.
    live_release   integer,
    -- Why the last start failed.
    problem        text,
    CHECK (wanted_release <= last_release AND live_release <= last_release)
);

-- What a site of the type wordpress was ordered with, and whether it was installed.
CREATE TABLE wordpress_sites (
    site_id        uuid PRIMARY KEY REFERENCES sites ON DELETE CASCADE,
    title          text NOT NULL,
    -- Empty for English, else as WordPress names its languages: de_DE.
    locale         text NOT NULL DEFAULT '',
    admin_email    text NOT NULL,
    -- The name of the first administrator in WordPress.
    admin_login    text NOT NULL,
    -- Since then nothing makes it anew: it may have content. NULL while it is being made.
    installed_at   timestamptz,
    -- Whether a schedule of the site was made for WordPress's own cron: it is made once, and is its owner's from then on.
    cron_scheduled boolean NOT NULL DEFAULT false
);

-- Scheduled tasks of sites, and what became of their runs.
CREATE TABLE schedules (
    id                 uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    site_id            uuid NOT NULL REFERENCES sites ON DELETE CASCADE,
    name               text NOT NULL,
    -- What runs what `path` names: an interpreter a file of the site, `url` the site itself.
    kind               text NOT NULL CHECK (kind IN ('php', 'python', 'node', 'url')),
    path               text NOT NULL,
    args               text[] NOT NULL DEFAULT '{}',
    -- Five fields of cron(5), as a clock of time_zone shows them.
    cron               text NOT NULL,
    time_zone          text NOT NULL,
    time_limit_seconds integer NOT NULL CHECK (time_limit_seconds > 0),
    enabled            boolean NOT NULL DEFAULT true,
    -- By the clock of the core.
    next_run_at        timestamptz,
    created_at         timestamptz NOT NULL DEFAULT now(),
    UNIQUE (site_id, name),
    CHECK (enabled = (next_run_at IS NOT NULL)),
    CHECK (kind <> 'url' OR args = '{}')
);
CREATE INDEX schedules_due ON schedules (next_run_at) WHERE next_run_at IS NOT NULL;

CREATE TABLE schedule_runs (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule_id uuid NOT NULL REFERENCES schedules ON DELETE CASCADE,
    status      text NOT NULL
                CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'timed_out', 'stopped', 'skipped',
                                  'missed', 'interrupted')),
    -- When it was to start; NULL of one that somebody asked for.
    due_at      timestamptz,
    started_at  timestamptz,
    ended_at    timestamptz,
    -- Of the program; the status of HTTP of a URL.
    exit_status integer,
    -- The end of what it wrote, at most 32 KiB.
    output      text NOT NULL DEFAULT '',
    CHECK ((status IN ('queued', 'running')) = (ended_at IS NULL))
);
-- Never two of one schedule at the same time.
CREATE UNIQUE INDEX schedule_runs_one ON schedule_runs (schedule_id) WHERE ended_at IS NULL;
CREATE INDEX schedule_runs_history ON schedule_runs (schedule_id, id);

-- Access accounts, which sign in to a site's files by SFTP or with a shell: as s<number>-<name>, with the user id of the
-- site. Shells are off unless the plan of a site's owner, or an administrator for the site, allows them.
CREATE TABLE sftp_accounts (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    site_id       uuid NOT NULL REFERENCES sites ON DELETE CASCADE,
    name          text NOT NULL,
    -- Beneath the site's home; empty: the home itself.
    folder        text NOT NULL,
    -- As in shadow(5); without one only keys open it.
    password_hash text,
    -- Lines of authorized_keys, without options.
    keys          text[] NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    kind          text NOT NULL DEFAULT 'sftp' CHECK (kind IN ('sftp', 'shell')),
    UNIQUE (site_id, name),
    CHECK (password_hash IS NOT NULL OR cardinality(keys) > 0)
);

-- Uploads that come in parts: every request of the API is at most 1 MB. The parts are in a file that is no part of the site
-- yet; here is its destination, and which parts have come.
CREATE TABLE file_uploads (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    site_id    uuid NOT NULL REFERENCES sites ON DELETE CASCADE,
    path       text NOT NULL,
    size       bigint NOT NULL CHECK (size >= 0),
    -- An existing file may be replaced.
    replace    boolean NOT NULL,
    -- Which bytes have come. Parts may overlap and repeat: a range is added to what is there.
    received   int8multirange NOT NULL DEFAULT '{}',
    status     text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'finished')),
    -- Of the whole, once it is finished; a repeated call to finish it is answered by this.
    sha256     text,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- When something came last. An upload that nobody continues is removed.
    touched_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((status = 'finished') = (sha256 IS NOT NULL))
);
CREATE INDEX file_uploads_site ON file_uploads (site_id, created_at, id);
CREATE INDEX file_uploads_touched ON file_uploads (touched_at);

------------------------------------------------------------------------------------------------------------------------
-- Databases of sites

-- The rows are the truth: what an engine lost, or has too much, is mended from them.

CREATE TABLE databases (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    -- A site goes when its databases have gone.
    site_id    uuid NOT NULL REFERENCES sites,
    engine     text NOT NULL CHECK (engine IN ('mariadb', 'postgresql')),
    -- In the engine: s<number of the site>_<what the customer calls it>.
    name       text NOT NULL,
    status     text NOT NULL DEFAULT 'creating' CHECK (status IN ('creating', 'active', 'deleting')),
    -- Why the engine did not do what the status says, in its own words. It is asked again.
    problem    text,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (engine, name)
);
CREATE INDEX databases_site ON databases (site_id);
CREATE INDEX databases_under_way ON databases (site_id) WHERE status <> 'active';

CREATE TABLE database_users (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    site_id    uuid NOT NULL REFERENCES sites,
    engine     text NOT NULL CHECK (engine IN ('mariadb', 'postgresql')),
    name       text NOT NULL,
    -- What the engine checks the password with; the password itself is not stored.
    verifier   text NOT NULL,
    status     text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'deleting')),
    -- Each change of the user, its password or its grants raises it; `applied` is the one that the engine has.
    wanted     integer NOT NULL DEFAULT 1,
    applied    integer NOT NULL DEFAULT 0,
    problem    text,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (engine, name)
);
CREATE INDEX database_users_site ON database_users (site_id);
CREATE INDEX database_users_under_way ON database_users (site_id) WHERE status <> 'active' OR applied < wanted;

CREATE TABLE database_grants (
    user_id     uuid NOT NULL REFERENCES database_users ON DELETE CASCADE,
    database_id uuid NOT NULL REFERENCES databases ON DELETE CASCADE,
    access      text NOT NULL CHECK (access IN ('full', 'read_only')),
    PRIMARY KEY (user_id, database_id)
);
CREATE INDEX database_grants_database ON database_grants (database_id);

-- Exports that wait to be downloaded; the name of the file is the id. One whose job failed is removed.
CREATE TABLE database_exports (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    database_id uuid NOT NULL REFERENCES databases ON DELETE CASCADE,
    status      text NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'ready')),
    size        bigint,
    -- Of the whole file, in hex.
    sha256      text,
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz NOT NULL,
    CHECK ((status = 'ready') = (size IS NOT NULL AND sha256 IS NOT NULL))
);
CREATE INDEX database_exports_database ON database_exports (database_id, created_at);
CREATE INDEX database_exports_expiry ON database_exports (expires_at);

------------------------------------------------------------------------------------------------------------------------
-- DNS

-- What Knot is to serve. The rows are the truth; a zone that Knot lost or was made to serve otherwise is mended from them.

-- One zone a registrable domain, which is one customer's alone (site_domains.registrable).
CREATE TABLE dns_zones (
    name            text PRIMARY KEY CHECK (name = lower(name)),
    owner_id        uuid NOT NULL REFERENCES users,
    -- Raised by every change of its records; `served_revision` is the one that Knot was last seen to serve.
    revision        bigint NOT NULL DEFAULT 1,
    served_revision bigint NOT NULL DEFAULT 0,
    -- The highest serial that Knot was seen to have: a zone that is made anew starts above it.
    serial          bigint,
    -- Why Knot does not serve `revision`, in its own words.
    problem         text,
    created_at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX dns_zones_owner ON dns_zones (owner_id);

CREATE TABLE dns_records (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    zone       text NOT NULL REFERENCES dns_zones ON DELETE CASCADE,
    -- The full name, in A-labels and lower case.
    name       text NOT NULL CHECK (name = lower(name)),
    type       text NOT NULL
               CHECK (type IN ('A', 'AAAA', 'CNAME', 'MX', 'TXT', 'SRV', 'CAA', 'NS', 'PTR', 'TLSA', 'SSHFP', 'DS')),
    -- All records of one name and type have the same (RFC 2181, section 5.2).
    ttl        integer NOT NULL CHECK (ttl BETWEEN 60 AND 604800),
    -- Logical values by the names of their fields, `type` among them: one text however long, numbers, names, addresses.
    data       jsonb NOT NULL CHECK (data ->> 'type' = type),
    -- Made by the panel for itself, such as the proof that an authority asks for; its customer sees it and leaves it.
    managed    boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX dns_records_zone ON dns_records (zone, name, type, created_at, id);
-- The digest, since a text may be longer than a row of an index.
CREATE UNIQUE INDEX dns_records_once ON dns_records (zone, name, type, md5(data::text));

------------------------------------------------------------------------------------------------------------------------
-- Customers, what they are sold, and who works for them

-- Plans with allowances.
CREATE TABLE hosting_plans (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name        text NOT NULL UNIQUE,
    -- Of all that a customer has; NULL: as much as there is.
    sites       integer CHECK (sites >= 0),
    databases   integer CHECK (databases >= 0),
    disk_mib    integer CHECK (disk_mib > 0),
    traffic_mib bigint CHECK (traffic_mib > 0),
    -- Of each site: its initial limits.
    cpu_percent integer CHECK (cpu_percent > 0),
    memory_mib  integer CHECK (memory_mib > 0),
    processes   integer CHECK (processes > 0),
    created_at  timestamptz NOT NULL DEFAULT now(),
    shell       boolean NOT NULL DEFAULT false
);

-- What is kept of a customer as a customer. A person without a row is one without a plan.
CREATE TABLE hosting_accounts (
    user_id       uuid PRIMARY KEY REFERENCES users ON DELETE CASCADE,
    plan_id       uuid REFERENCES hosting_plans,
    -- Why the whole account is suspended, sites and all; NULL if it is not.
    suspended_for text,
    -- The order that created it: whose idempotency key, and which. The same order finds it again.
    ordered_by    text UNIQUE,
    created_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX hosting_accounts_plan ON hosting_accounts (plan_id);

-- What a site takes on the disk, as it was measured last: `bytes` is all of it, files, databases and exports together.
CREATE TABLE site_disk_use (
    site_id        uuid PRIMARY KEY REFERENCES sites ON DELETE CASCADE,
    bytes          bigint NOT NULL CHECK (bytes >= 0),
    measured_at    timestamptz NOT NULL DEFAULT now(),
    database_bytes bigint NOT NULL DEFAULT 0 CHECK (database_bytes >= 0),
    export_bytes   bigint NOT NULL DEFAULT 0 CHECK (export_bytes >= 0)
);

-- What visitors were sent, by the web server's logs. `month` is its first day (UTC). An account's is kept when a site is
-- deleted: what was sent stays sent.
CREATE TABLE site_traffic (
    site_id  uuid NOT NULL REFERENCES sites ON DELETE CASCADE,
    month    date NOT NULL,
    requests bigint NOT NULL,
    bytes    bigint NOT NULL,
    PRIMARY KEY (site_id, month)
);
CREATE TABLE account_traffic (
    user_id  uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    month    date NOT NULL,
    requests bigint NOT NULL,
    bytes    bigint NOT NULL,
    PRIMARY KEY (user_id, month)
);
-- Up to where a site's log is counted: written with what was counted, so that no line counts twice.
CREATE TABLE site_traffic_counted (
    site_id uuid PRIMARY KEY REFERENCES sites ON DELETE CASCADE,
    cursor  text NOT NULL
);

-- `member`: somebody who was invited and has no account of their own. Nothing can be theirs until an administrator makes
-- them a customer.
ALTER TABLE users DROP CONSTRAINT users_role_check;
ALTER TABLE users ADD CONSTRAINT users_role_check CHECK (role IN ('administrator', 'staff', 'customer', 'member'));

-- Who may work in a customer's account besides the customer, and as what.
CREATE TABLE account_members (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    -- The customer whose sites they are.
    account_id  uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    user_id     uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    -- The one site that it is for; NULL for all of the account, also those to come.
    site_id     uuid REFERENCES sites ON DELETE CASCADE,
    -- svc/panel/accounts/member_roles.py says what a role may; one that it does not know may nothing.
    role        text NOT NULL,
    -- For people to read.
    invited_by  text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    -- Nobody works in an account that they have not agreed to.
    accepted_at timestamptz,
    UNIQUE NULLS NOT DISTINCT (account_id, user_id, site_id),
    CHECK (account_id <> user_id)
);
CREATE INDEX account_members_user ON account_members (user_id);
CREATE INDEX account_members_site ON account_members (site_id);

-- Invitations that were mailed in the last hour, to bound them: neither a mailbox nor the relay is flooded.
CREATE TABLE member_invitations (
    account_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    recipient  text NOT NULL,
    sent_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX member_invitations_account ON member_invitations (account_id, sent_at);
CREATE INDEX member_invitations_recipient ON member_invitations (recipient, sent_at);
CREATE INDEX member_invitations_sent ON member_invitations (sent_at);

-- Links that sign a browser in as a customer, once. Only the SHA-256 of what one carries is known.
CREATE TABLE sign_in_links (
    token_hash bytea PRIMARY KEY,
    user_id    uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    -- For people to read, in the audit of the session that it starts.
    made_by    text NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX sign_in_links_user ON sign_in_links (user_id);

------------------------------------------------------------------------------------------------------------------------
-- Backups of sites: a restic repository a site, what it holds, where copies of it go, and when the next one is made

-- Where copies go, besides the repository on this server. `settings` by kind: the path; host, port, user, path and host key;
-- endpoint, bucket, prefix and access key. The sealed secret is the private key, or the secret key.
CREATE TABLE backup_targets (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name          text NOT NULL UNIQUE,
    kind          text NOT NULL CHECK (kind IN ('local', 'sftp', 's3')),
    settings      jsonb NOT NULL,
    sealed_secret bytea,
    created_at    timestamptz NOT NULL DEFAULT now(),
    CHECK ((kind = 'local') = (sealed_secret IS NULL))
);

-- A repository outlives its site: its last backup is there for its owner until `kept_until`.
CREATE TABLE backup_repositories (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    site_id    uuid UNIQUE REFERENCES sites ON DELETE SET NULL,
    -- Of a site that is gone: whose it was. While there is a site, its owner counts.
    owner_id   uuid REFERENCES users,
    domain     text NOT NULL,
    -- What restic encrypts with.
    sealed_key bytea NOT NULL,
    kept_until timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK (site_id IS NOT NULL OR owner_id IS NOT NULL)
);
CREATE INDEX backup_repositories_owner ON backup_repositories (owner_id);
CREATE INDEX backup_repositories_kept ON backup_repositories (kept_until) WHERE kept_until IS NOT NULL;

CREATE TABLE site_backups (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    repository_id uuid NOT NULL REFERENCES backup_repositories ON DELETE CASCADE,
    cause         text NOT NULL CHECK (cause IN ('manual', 'scheduled', 'final')),
    status        text NOT NULL DEFAULT 'pending'
                  CHECK (status IN ('pending', 'completed', 'failed', 'deleting')),
    -- The job that makes it.
    job_id        bigint NOT NULL UNIQUE,
    files         bigint,
    bytes         bigint,
    -- How much the repository has grown by it.
    added_bytes   bigint,
    databases     text[] NOT NULL DEFAULT '{}',
    -- Why it failed.
    error         text,
    created_at    timestamptz NOT NULL DEFAULT now(),
    completed_at  timestamptz,
    -- What it holds of the site's configuration, without the key of its certificate: what a restoration would change is
    -- shown from it. NULL of backups of earlier releases.
    configuration jsonb,
    CHECK ((status IN ('completed', 'deleting')) = (completed_at IS NOT NULL)),
    CHECK ((status = 'failed') = (error IS NOT NULL))
);
CREATE INDEX site_backups_repository ON site_backups (repository_id, created_at, id);
CREATE INDEX site_backups_created ON site_backups (created_at, id);
CREATE INDEX site_backups_status ON site_backups (status, created_at, id);

-- How the copy of a backup to a target went.
CREATE TABLE backup_copies (
    backup_id uuid NOT NULL REFERENCES site_backups ON DELETE CASCADE,
    target_id uuid NOT NULL REFERENCES backup_targets ON DELETE CASCADE,
    -- NULL: it is there.
    error     text,
    at        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (backup_id, target_id)
);
CREATE INDEX backup_copies_target ON backup_copies (target_id);

-- When a site is backed up by itself, in UTC, and which backups are kept. Without a row there is none.
CREATE TABLE backup_schedules (
    site_id      uuid PRIMARY KEY REFERENCES sites ON DELETE CASCADE,
    frequency    text NOT NULL CHECK (frequency IN ('hourly', 'daily', 'weekly')),
    hour         smallint NOT NULL CHECK (hour BETWEEN 0 AND 23),
    -- 0 is Monday; of a weekly one.
    weekday      smallint NOT NULL CHECK (weekday BETWEEN 0 AND 6),
    keep_last    smallint NOT NULL CHECK (keep_last BETWEEN 1 AND 500),
    keep_daily   smallint NOT NULL CHECK (keep_daily BETWEEN 0 AND 500),
    keep_weekly  smallint NOT NULL CHECK (keep_weekly BETWEEN 0 AND 500),
    keep_monthly smallint NOT NULL CHECK (keep_monthly BETWEEN 0 AND 500),
    next_run_at  timestamptz NOT NULL
);
CREATE INDEX backup_schedules_next ON backup_schedules (next_run_at);

-- Drills: backups restored next to their sites and compared, to know that they can be.
CREATE TABLE backup_drills (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    backup_id  uuid NOT NULL,
    domain     text NOT NULL,
    cause      text NOT NULL CHECK (cause IN ('manual', 'scheduled')),
    status     text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'succeeded', 'failed')),
    job_id     bigint NOT NULL UNIQUE,
    -- How many entries of the site's tree, and how many databases, are what was backed up.
    entries    bigint NOT NULL DEFAULT 0,
    databases  integer NOT NULL DEFAULT 0,
    -- Databases made for it that still exist: the engine and the name.
    scratch    text[] NOT NULL DEFAULT '{}',
    error      text,
    created_at timestamptz NOT NULL DEFAULT now(),
    ended_at   timestamptz,
    CHECK ((status = 'pending') = (ended_at IS NULL)),
    CHECK ((status = 'failed') = (error IS NOT NULL))
);
-- Never two at a time.
CREATE UNIQUE INDEX backup_drills_one ON backup_drills ((true)) WHERE status = 'pending';
CREATE INDEX backup_drills_created ON backup_drills (created_at, id);

-- When the next is made by itself. One row.
CREATE TABLE backup_drill_plan (
    only_one    boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    frequency   text NOT NULL DEFAULT 'weekly' CHECK (frequency IN ('off', 'weekly')),
    next_run_at timestamptz NOT NULL DEFAULT now() + interval '7 days'
);
INSERT INTO backup_drill_plan DEFAULT VALUES;

------------------------------------------------------------------------------------------------------------------------
-- Jobs: slow work, its steps and its log

-- The order in which jobs were started, which is what turns go by; a clock can be set back.
CREATE SEQUENCE job_turns;

CREATE TABLE jobs (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind       text NOT NULL,
    title      text NOT NULL,
    class      text NOT NULL CHECK (class IN ('backups', 'migrations', 'system', 'sites')),
    status     text NOT NULL DEFAULT 'queued'
               CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    progress   smallint NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 100),
    -- No reference: what was done to a site that has been deleted is still shown.
    site_id    uuid,
    owner_id   uuid REFERENCES users ON DELETE SET NULL,
    tenant     uuid NOT NULL GENERATED ALWAYS AS
               (coalesce(owner_id, '00000000-0000-0000-0000-000000000000')) STORED,
    -- What takes turns with the others of its class: a site, else a person.
    flow       uuid NOT NULL GENERATED ALWAYS AS
               (coalesce(site_id, owner_id, '00000000-0000-0000-0000-000000000000')) STORED,
    -- The arguments of the work. Never a secret.
    parameters jsonb NOT NULL DEFAULT '{}',
    -- code, message, hint.
    error      jsonb,
    last_seq   bigint NOT NULL DEFAULT 0,
    -- Given from job_turns when it is started.
    turn       bigint,
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    ended_at   timestamptz,
    CHECK ((status = 'failed') = (error IS NOT NULL)),
    CHECK ((status IN ('succeeded', 'failed', 'cancelled')) = (ended_at IS NOT NULL)),
    CHECK (class <> 'sites' OR site_id IS NOT NULL)
) WITH (fillfactor = 80);
CREATE INDEX jobs_created ON jobs (created_at, id);
CREATE INDEX jobs_owner ON jobs (owner_id, created_at, id);
CREATE INDEX jobs_site ON jobs (site_id, created_at, id);
CREATE INDEX jobs_status ON jobs (status, created_at, id);
CREATE INDEX jobs_kind ON jobs (kind, created_at, id);
-- Who is next, and who was served when.
CREATE INDEX jobs_waiting ON jobs (class, flow, id) WHERE status = 'queued';
CREATE INDEX jobs_turns_of_flows ON jobs (class, flow, turn) WHERE turn IS NOT NULL;
CREATE INDEX jobs_turns_of_tenants ON jobs (class, tenant, turn) WHERE turn IS NOT NULL;
-- Never two of one site at the same time, whatever their classes: none finds the site half changed by another.
CREATE UNIQUE INDEX jobs_one_at_a_site ON jobs (site_id) WHERE status = 'running';
CREATE INDEX jobs_ended ON jobs (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE job_steps (
    job_id     bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    position   integer NOT NULL CHECK (position > 0),
    name       text NOT NULL,
    status     text NOT NULL DEFAULT 'queued'
               CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    error      jsonb,
    started_at timestamptz,
    ended_at   timestamptz,
    PRIMARY KEY (job_id, position),
    CHECK ((status = 'failed') = (error IS NOT NULL))
);

-- seq is 1, 2, 3, ... of each job without a gap, in the order of commits.
CREATE TABLE job_lines (
    job_id  bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    seq     bigint NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The position of the step that it is from.
    step    integer,
    message text NOT NULL,
    PRIMARY KEY (job_id, seq)
);

------------------------------------------------------------------------------------------------------------------------
-- Webhooks (docs/webhooks.md): who receives them, what there is to send, and what became of it

CREATE TABLE webhook_endpoints (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    url           text NOT NULL,
    -- Names of events, or `*` alone for all events, also those of a later release.
    events        text[] NOT NULL CHECK (cardinality(events) > 0),
    -- While it is not, nothing new is written for it, and what waits keeps waiting.
    enabled       boolean NOT NULL DEFAULT true,
    sealed_secret bytea NOT NULL,
    last_four     text NOT NULL CHECK (length(last_four) = 4),
    created_at    timestamptz NOT NULL DEFAULT now(),
    rotated_at    timestamptz
);

CREATE TABLE webhook_events (
    id    uuid PRIMARY KEY,
    event text NOT NULL,
    at    timestamptz NOT NULL,
    -- The bytes that every attempt sends.
    body  bytea NOT NULL
);
CREATE INDEX webhook_events_at ON webhook_events (at);

CREATE TABLE webhook_deliveries (
    -- How the receiver recognizes repeats: the same in all attempts, also in those of a replay.
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    endpoint_id     uuid NOT NULL REFERENCES webhook_endpoints ON DELETE CASCADE,
    event_id        uuid NOT NULL REFERENCES webhook_events,
    status          text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'delivered', 'retrying', 'failed')),
    -- Those that have an outcome. One that a crash cut short is not counted, and is made again.
    attempts        integer NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL,
    -- When it is tried next, by the clock of the core.
    next_attempt_at timestamptz,
    -- Of the last attempt: when its outcome was there, how long it took, what the receiver answered, or why it did not.
    attempted_at    timestamptz,
    duration_ms     integer,
    response_status integer,
    error           text,
    CHECK ((status IN ('pending', 'retrying')) = (next_attempt_at IS NOT NULL))
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (endpoint_id, next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;
CREATE INDEX webhook_deliveries_history ON webhook_deliveries (endpoint_id, created_at, id);
CREATE INDEX webhook_deliveries_of_event ON webhook_deliveries (event_id);
