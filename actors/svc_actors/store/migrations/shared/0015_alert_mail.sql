-- Alerts and sign-ins by mail (docs/mail.md).

ALTER TABLE users
    -- The least severity of the alerts that an operator is mailed. Customers are mailed none.
    ADD COLUMN alert_mail text NOT NULL DEFAULT 'critical' CHECK (alert_mail IN ('none', 'critical', 'warning'));

-- Which alerts an operator was told of, as how severe. The row goes when they were told that the alert has closed.
CREATE TABLE alerts_mailed (
    user_id  uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    alert_id uuid NOT NULL REFERENCES alerts ON DELETE CASCADE,
    severity text NOT NULL,
    PRIMARY KEY (user_id, alert_id)
);
CREATE INDEX alerts_mailed_alert ON alerts_mailed (alert_id);
