-- The licence of the panel, as its issuer gave it out. One row, or none.
CREATE TABLE panel_license (
    one          boolean PRIMARY KEY DEFAULT true CHECK (one),
    file         text NOT NULL,
    installed_at timestamptz NOT NULL DEFAULT now()
);
