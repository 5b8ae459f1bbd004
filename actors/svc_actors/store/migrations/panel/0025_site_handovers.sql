-- Handovers of sites that are not whole yet: what opened the site to its owner before may open it still.
CREATE TABLE site_handovers (
    site_id           uuid PRIMARY KEY REFERENCES sites ON DELETE CASCADE,
    -- Counts those that were ordered while one was pending.
    generation        integer NOT NULL DEFAULT 1,
    wordpress_renewed boolean NOT NULL DEFAULT false,
    failures          integer NOT NULL DEFAULT 0,
    next_attempt_at   timestamptz NOT NULL DEFAULT now()
);
