-- How many mails each site of a plan's customers may send, counted by recipient; NULL: as the server's settings say.
ALTER TABLE hosting_plans
    ADD COLUMN mails_per_hour integer CHECK (mails_per_hour >= 0),
    ADD COLUMN mails_per_day  integer CHECK (mails_per_day >= 0);

-- What an administrator set for the mail of a site, and whether it is held. A site without a row sends within the limits
-- of its owner's plan.
CREATE TABLE site_mail_settings (
    site_id        uuid PRIMARY KEY REFERENCES sites ON DELETE CASCADE,
    enabled        boolean NOT NULL DEFAULT true,
    mails_per_hour integer CHECK (mails_per_hour >= 0),
    mails_per_day  integer CHECK (mails_per_day >= 0),
    held_at        timestamptz,
    held_reason    text,
    -- When a hold ends by itself; NULL: once somebody releases it.
    held_until     timestamptz,
    -- What was accepted before is not counted by the limits: the site was released then.
    counted_from   timestamptz,
    -- When its owner released it last, which is possible once a day.
    owner_released timestamptz,
    -- When its owner was last told of a hold by mail.
    owner_told     timestamptz,
    CHECK ((held_at IS NULL) = (held_reason IS NULL)),
    CHECK ((held_until IS NOT NULL) <= (held_at IS NOT NULL))
);

-- Mails that programs of sites have handed in: a row for each recipient. The message itself is a file of the spool,
-- named by `message`, which is there as long as one of its rows is queued.
CREATE TABLE site_mails (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    message     uuid NOT NULL,
    site_id     uuid NOT NULL REFERENCES sites ON DELETE CASCADE,
    sender      text NOT NULL,
    recipient   text NOT NULL,
    -- The program that sent it: folder and name as the site gave them, a hint for people and never proof.
    script      text,
    bytes       integer NOT NULL CHECK (bytes >= 0),
    -- The headers of a DKIM signature (RFC 6376), as the message's first lines.
    signature   text,
    state       text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'sent', 'failed')),
    attempts    integer NOT NULL DEFAULT 0,
    error       text,
    accepted_at timestamptz NOT NULL DEFAULT now(),
    attempt_at  timestamptz NOT NULL DEFAULT now(),
    deadline_at timestamptz NOT NULL,
    ended_at    timestamptz,
    CHECK ((state = 'queued') = (ended_at IS NULL))
);
CREATE INDEX site_mails_due ON site_mails (attempt_at) WHERE state = 'queued';
-- Sites take turns in the delivery.
CREATE INDEX site_mails_due_of_site ON site_mails (site_id, attempt_at) WHERE state = 'queued';
CREATE INDEX site_mails_of_site ON site_mails (site_id, accepted_at);
CREATE INDEX site_mails_message ON site_mails (message);
CREATE INDEX site_mails_ended ON site_mails (ended_at) WHERE ended_at IS NOT NULL;

-- Keys that sign the mail of a zone's domain (DKIM). The public half is published in the zone, at `selector`.
CREATE TABLE dkim_keys (
    zone        text PRIMARY KEY REFERENCES dns_zones ON DELETE CASCADE,
    selector    text NOT NULL,
    -- PKCS #8, sealed.
    private_key bytea NOT NULL,
    -- As the record p= has it.
    public_key  text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);
