-- What the agent of a node runs from, and the last upgrade of each node's agent.
ALTER TABLE nodes ADD COLUMN agent_release text;
CREATE INDEX tasks_upgrades ON tasks (node_id, created_at DESC) WHERE op = 'node.upgrade';
