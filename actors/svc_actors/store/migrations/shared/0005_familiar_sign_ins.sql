-- From where each account was signed in to: what the throttle of sign-ins lets try although strangers have used up the
-- account's or the address's tries. `account` is the hash of its e-mail address, as in sign_in_attempts. `mark` is
-- 'address:' and the address (of IPv6 its /64), or 'browser:' and the SHA-256 of the cookie that a browser was given.
CREATE TABLE familiar_sign_ins (
    account text NOT NULL,
    mark    text NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (account, mark)
);
CREATE INDEX familiar_sign_ins_seen ON familiar_sign_ins (seen_at);
