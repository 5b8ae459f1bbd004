-- Names tell things apart: projects, the pools of a network, and the machines of a project.

-- Where there were several of one name, all but the oldest get the beginning of their id behind it.
UPDATE projects SET name = projects.name || ' ' || left(projects.id::text, 8)
FROM (SELECT id, row_number() OVER (PARTITION BY name ORDER BY created_at, id) AS number FROM projects) AS counted
WHERE counted.id = projects.id AND counted.number > 1;
CREATE UNIQUE INDEX projects_name ON projects (name);

UPDATE pools SET name = pools.name || ' ' || left(pools.id::text, 8)
FROM (SELECT id, row_number() OVER (PARTITION BY network_id, name ORDER BY created_at, id) AS number FROM pools) AS counted
WHERE counted.id = pools.id AND counted.number > 1;
CREATE UNIQUE INDEX pools_name ON pools (network_id, name);

-- A machine whose creation failed, which can only be deleted, holds its name no longer.
DROP INDEX vms_name;
CREATE UNIQUE INDEX vms_name ON vms (project_id, name)
    WHERE deleted_at IS NULL AND (built_at IS NOT NULL OR status = 'creating');
