-- Code of a deployment comes from an archive among the site's files, or from a git repository.
ALTER TABLE app_deployments
    ALTER archive DROP NOT NULL,
    ADD git_url    text,
    -- A branch, a tag or a commit, as it was ordered.
    ADD git_ref    text,
    -- What that was when it was fetched.
    ADD git_commit text,
    ADD CONSTRAINT one_source CHECK (num_nonnulls(archive, git_url) = 1 AND (git_url IS NULL) = (git_ref IS NULL));
