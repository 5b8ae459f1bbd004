-- Imports that are fetched from another host: where from, and what opens it, which is kept until the files have come.
ALTER TABLE imports DROP CONSTRAINT imports_status_check;
ALTER TABLE imports
    ADD CONSTRAINT imports_status_check
        CHECK (status IN ('uploading', 'fetching', 'analysing', 'ready', 'applying', 'applied', 'failed')),
    ADD COLUMN remote jsonb,
    ADD COLUMN sealed_secret bytea CHECK (sealed_secret IS NULL OR status = 'fetching');
