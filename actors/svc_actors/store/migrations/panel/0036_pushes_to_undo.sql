-- A push that was interrupted where the database server does not answer is undone later, and its site waits for that.
ALTER TABLE stagings DROP CONSTRAINT stagings_status_check;
ALTER TABLE stagings ADD CONSTRAINT stagings_status_check
    CHECK (status IN ('creating', 'ready', 'refreshing', 'pushing', 'undoing', 'failed'));
