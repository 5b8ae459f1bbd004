-- What customers are sold: plans with allowances, and which customer has which.

CREATE TABLE hosting_plans (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name        text NOT NULL UNIQUE,
    -- Of all that a customer has; as much as there is, where NULL.
    sites       integer CHECK (sites >= 0),
    databases   integer CHECK (databases >= 0),
    disk_mib    integer CHECK (disk_mib > 0),
    traffic_mib bigint CHECK (traffic_mib > 0),
    -- Of each site: what a site begins with, as its own limits.
    cpu_percent integer CHECK (cpu_percent > 0),
    memory_mib  integer CHECK (memory_mib > 0),
    processes   integer CHECK (processes > 0),
    created_at  timestamptz NOT NULL DEFAULT now()
);

-- What is kept of a customer as a customer. A person without a row is one without a plan.
CREATE TABLE hosting_accounts (
    user_id       uuid PRIMARY KEY REFERENCES users ON DELETE CASCADE,
    plan_id       uuid REFERENCES hosting_plans,
    -- Why the whole account is suspended, sites and all; NULL where it is not.
    suspended_for text,
    -- By which order it was created: whose idempotency key, and which. The same order finds it again.
    ordered_by    text UNIQUE,
    created_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX hosting_accounts_plan ON hosting_accounts (plan_id);

-- A site can be suspended with the account that it is of, and comes back with it.
ALTER TABLE sites DROP CONSTRAINT sites_suspended_by_check;
ALTER TABLE sites ADD CONSTRAINT sites_suspended_by_check
    CHECK (suspended_by IN ('owner', 'administrator', 'account'));

-- What files of a site take on the disk, as they were counted last.
CREATE TABLE site_disk_use (
    site_id     uuid PRIMARY KEY REFERENCES sites ON DELETE CASCADE,
    bytes       bigint NOT NULL CHECK (bytes >= 0),
    measured_at timestamptz NOT NULL DEFAULT now()
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
