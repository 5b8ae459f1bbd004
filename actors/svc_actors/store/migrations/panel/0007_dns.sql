-- DNS: what Knot shall serve. The rows are the truth; a zone that Knot lost or was made to serve otherwise is mended from them.

-- One zone a registrable domain, which is one customer's alone (site_domains.registrable).
CREATE TABLE dns_zones (
    name             text PRIMARY KEY CHECK (name = lower(name)),
    owner_id         uuid NOT NULL REFERENCES users,
    -- Raised by every change of its records; `served_revision` is the one that Knot was last seen to serve.
    revision         bigint NOT NULL DEFAULT 1,
    served_revision  bigint NOT NULL DEFAULT 0,
    -- The highest serial that Knot was seen to have: a zone that is made anew begins above it.
    serial           bigint,
    -- Why Knot does not serve `revision`, in its own words.
    problem          text,
    created_at       timestamptz NOT NULL DEFAULT now()
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
