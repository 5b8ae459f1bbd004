-- A Windows machine's first boot, and the password of its administrator's account. A row is there from when the system
-- is ordered, and is made anew with a reinstallation. No password is in it: a chosen one is in the memory of the
-- service until the first boot has ended, and the one that a machine has set for itself stays in the machine.

CREATE TABLE windows_setups (
    vm_id uuid PRIMARY KEY REFERENCES vms ON DELETE CASCADE,
    ordered_at timestamptz NOT NULL DEFAULT now(),
    password_ordered boolean NOT NULL,
    booted_at timestamptz,
    password_set_at timestamptz,
    password_error text,
    credential_taken_at timestamptz,
    CHECK (booted_at IS NOT NULL OR (password_set_at IS NULL AND password_error IS NULL AND credential_taken_at IS NULL)),
    CHECK (password_set_at IS NULL OR password_error IS NULL)
);
CREATE INDEX windows_setups_awaited ON windows_setups (vm_id) WHERE booted_at IS NULL;
