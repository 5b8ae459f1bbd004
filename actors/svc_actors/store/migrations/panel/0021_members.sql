-- Who may work in a customer's account beside the customer, and as what.

-- Somebody who was invited and has no account of their own: nothing can be theirs until an administrator makes them a
-- customer.
ALTER TABLE users DROP CONSTRAINT users_role_check;
ALTER TABLE users ADD CONSTRAINT users_role_check CHECK (role IN ('administrator', 'staff', 'customer', 'member'));

CREATE TABLE account_members (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    -- The customer whose sites they are.
    account_id  uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    user_id     uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    -- The one site that it is for; NULL for all of the account, also those to come.
    site_id     uuid REFERENCES sites ON DELETE CASCADE,
    -- What a role may is svc/panel/member_roles.py's to say; one that it does not know may nothing.
    role        text NOT NULL,
    -- For people to read.
    invited_by  text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    -- Nobody works in an account that they have not agreed to.
    accepted_at timestamptz,
    UNIQUE NULLS NOT DISTINCT (account_id, user_id, site_id),
    CHECK (account_id <> user_id)
);
CREATE INDEX account_members_user ON account_members (user_id);
CREATE INDEX account_members_site ON account_members (site_id);

-- Invitations that were mailed in the last hour, to bound them: neither a mailbox nor the relay is flooded.
CREATE TABLE member_invitations (
    account_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    recipient  text NOT NULL,
    sent_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX member_invitations_account ON member_invitations (account_id, sent_at);
CREATE INDEX member_invitations_recipient ON member_invitations (recipient, sent_at);
CREATE INDEX member_invitations_sent ON member_invitations (sent_at);
