-- What its owner sorts a machine by: {"env": "production"}. Nothing of the service goes by it.
ALTER TABLE vms ADD COLUMN labels jsonb NOT NULL DEFAULT '{}';
-- Whether the machine is kept from being deleted or reinstalled.
ALTER TABLE vms ADD COLUMN protected boolean NOT NULL DEFAULT false;
-- Most machines have no labels, and cost nothing here.
CREATE INDEX vms_labels ON vms USING gin (labels) WHERE deleted_at IS NULL AND labels <> '{}';
