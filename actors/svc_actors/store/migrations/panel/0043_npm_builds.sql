-- Applications of node are built by npm, and by a script of their package.json where one is named.
ALTER TABLE app_deployments
    DROP CONSTRAINT app_deployments_build_check,
    ADD CONSTRAINT app_deployments_build_check CHECK (build IN ('none', 'pip', 'npm')),
    ADD build_script text,
    ADD CONSTRAINT scripts_are_of_npm CHECK (build_script IS NULL OR build = 'npm');
