-- Nobody reads it: a repeated order is found by its reference, and by the key in its machine's own row. A controller that
-- is being replaced still writes it, so the column itself goes later.
ALTER TABLE services ALTER COLUMN ordered_by DROP NOT NULL;

-- What a migration from another system has staged: which machine of this controller is the one that a billing system
-- has sold so far as a server of that other system.
CREATE TABLE staged_machines (
    integration      text NOT NULL,
    external_ref     text NOT NULL,
    legacy_server_id text NOT NULL,
    -- Not a reference: the machine may come later, or never.
    vm_id            uuid,
    staged_at        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (integration, external_ref)
);
