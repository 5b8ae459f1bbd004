-- An alert about a customer's machine is told to them as well, in words that name nothing of the provider's; that they have
-- seen it does not mean that an operator has.
ALTER TABLE alerts
    ADD COLUMN project_id               uuid,
    ADD COLUMN told                     text,
    ADD COLUMN customer_acknowledged_at timestamptz,
    ADD COLUMN customer_acknowledged_by uuid REFERENCES users,
    ADD CHECK ((project_id IS NULL) = (told IS NULL));
CREATE INDEX alerts_project ON alerts (project_id) WHERE closed_at IS NULL;
