-- What cloud-init of the ordered machine shall do, sealed, for a retry; until the service has a machine.
ALTER TABLE services ADD sealed_user_data bytea;
