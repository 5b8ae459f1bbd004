-- Backups of the controller itself, as `svc controller backup` ended them: what the alert about them goes by.

CREATE TABLE controller_backups (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ended_at      timestamptz NOT NULL DEFAULT now(),
    -- How often there shall be one; past twice that there is an alert.
    every_hours   double precision NOT NULL CHECK (every_hours > 0),
    place         text NOT NULL,
    archive       text,
    size_bytes    bigint,
    error         text,
    CHECK ((error IS NULL) = (archive IS NOT NULL))
);
