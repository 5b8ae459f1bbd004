-- The agent of each node, as its last connection said, and why a node cannot be online where that is known.
ALTER TABLE nodes
    ADD COLUMN agent_version text,
    ADD COLUMN agent_protocol integer,
    ADD COLUMN state_reason text;
