-- Which installation this is: made once, and told in every webhook (hosting-panel-api.md, Payload).
CREATE TABLE panel_installation (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    install_id uuid NOT NULL DEFAULT gen_random_uuid(),
    installed_at timestamptz NOT NULL DEFAULT now()
);

INSERT INTO panel_installation DEFAULT VALUES;
