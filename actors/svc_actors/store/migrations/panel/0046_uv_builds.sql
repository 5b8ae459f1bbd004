-- Applications of Python are built by uv as well.
ALTER TABLE app_deployments
    DROP CONSTRAINT app_deployments_build_check,
    ADD CONSTRAINT app_deployments_build_check CHECK (build IN ('none', 'pip', 'uv', 'npm'));
