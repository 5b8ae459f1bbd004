-- The newest change that a service knows to be committed, so that it notices when the database has lost one
-- (svc_actors/store/marks.py). A holder is a data folder of a service; each of its slots is written by one transaction at a
-- time, with a value that only grows, so that transactions never wait for each other's row.

CREATE TABLE commit_marks (
    holder uuid NOT NULL,
    slot   integer NOT NULL,
    value  bigint NOT NULL,
    at     timestamptz NOT NULL,
    PRIMARY KEY (holder, slot)
) WITH (fillfactor = 50);
