CREATE FUNCTION public.count_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO list_changes
        SELECT 'audit', NULL, ARRAY[(id >> 14)::text], CASE TG_OP WHEN 'INSERT' THEN count(*) ELSE -count(*) END
        FROM changed GROUP BY id >> 14;
    RETURN NULL;
END
$$;
CREATE FUNCTION public.refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.at < now() - interval '30 days' AND OLD.id <= (
        SELECT last_id FROM audit_exports WHERE first_id <= OLD.id ORDER BY first_id DESC LIMIT 1
    ) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'rows of audit are never changed, and removed only when they are exported and 30 days old'
        USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE FUNCTION public.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of % are never changed or removed', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE FUNCTION public.remove_exported_audit(age interval, first_row bigint, last_row bigint) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'public', 'pg_temp' AS $$
DECLARE
    removed integer;
BEGIN
    DELETE FROM audit USING audit_exports AS exported
    WHERE exported.first_id <= last_row AND exported.last_id >= first_row
      AND audit.id BETWEEN greatest(first_row, exported.first_id) AND least(last_row, exported.last_id)
      AND audit.at < now() - greatest(age, interval '30 days');
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END
$$;
CREATE FUNCTION public.text_pieces(texts text[]) RETURNS text[] LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    RETURN (
        SELECT coalesce(array_agg(DISTINCT substr(given, place, size)), '{}')
        FROM (SELECT DISTINCT lower(given) AS given FROM unnest(texts) given WHERE given IS NOT NULL) texts,
             generate_series(1, 3) size, generate_series(1, length(given) - size + 1) place
    );
END
$$;
CREATE FUNCTION public.text_words(texts text[]) RETURNS tsvector LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    text_of_all text := lower(array_to_string(texts, ' '));
BEGIN
    IF length(text_of_all) <= 100 THEN
        -- No word is longer than what is kept of one, so that no query is needed.
        RETURN array_to_tsvector(array_remove(regexp_split_to_array(text_of_all, '[^[:alnum:]]+'), ''));
    END IF;
    RETURN (
        SELECT array_to_tsvector(coalesce(array_agg(DISTINCT left(word, 100)), '{}'))
        FROM regexp_split_to_table(text_of_all, '[^[:alnum:]]+') word WHERE word <> ''
    );
END
$$;
CREATE FUNCTION public.wanted_pieces(wanted text) RETURNS text[] LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT array_agg(DISTINCT substr(lower(wanted), place, least(3, length(lower(wanted)))))
    FROM generate_series(1, greatest(1, length(lower(wanted)) - 2)) place
$$;
CREATE FUNCTION public.wanted_words(wanted text) RETURNS tsquery LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT string_agg(quote_literal(left(word, 100)) || ':*', ' & ')::tsquery
    FROM regexp_split_to_table(lower(wanted), '[^[:alnum:]]+') word WHERE word <> ''
$$;
CREATE TABLE public.account_members ( id uuid DEFAULT gen_random_uuid() NOT NULL, account_id uuid NOT NULL, user_id uuid NOT NULL, site_id uuid, role text NOT NULL, invited_by text NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, accepted_at timestamp with time zone, CONSTRAINT account_members_check CHECK ((account_id <> user_id)) );
CREATE TABLE public.account_traffic ( user_id uuid NOT NULL, month date NOT NULL, requests bigint NOT NULL, bytes bigint NOT NULL );
CREATE TABLE public.acme_accounts ( directory text NOT NULL, sealed_key bytea NOT NULL, contact text NOT NULL, url text );
CREATE TABLE public.acme_certificates ( name text NOT NULL, directory text NOT NULL, names text[] NOT NULL, chain text, sealed_key bytea, issuer text, not_before timestamp with time zone, not_after timestamp with time zone, order_key bytea, order_began timestamp with time zone, order_url text, due_at timestamp with time zone DEFAULT now() NOT NULL, failures integer DEFAULT 0 NOT NULL, last_error text, failed_at timestamp with time zone, challenge text DEFAULT 'http-01'::text NOT NULL, told_at timestamp with time zone, CONSTRAINT acme_certificates_challenge_check CHECK ((challenge = ANY (ARRAY['http-01'::text, 'dns-01'::text]))), CONSTRAINT acme_certificates_check CHECK ((num_nulls(chain, sealed_key, issuer, not_before, not_after) = ANY (ARRAY[0, 5]))), CONSTRAINT acme_certificates_check1 CHECK ((num_nulls(order_key, order_began) = ANY (ARRAY[0, 2]))), CONSTRAINT acme_certificates_check2 CHECK (((order_url IS NULL) OR (order_key IS NOT NULL))) );
CREATE TABLE public.alerts ( id uuid DEFAULT gen_random_uuid() NOT NULL, key text NOT NULL, severity text NOT NULL, message text NOT NULL, resource_kind text, resource_id text, opened_at timestamp with time zone DEFAULT now() NOT NULL, acknowledged_at timestamp with time zone, acknowledged_by uuid, closed_at timestamp with time zone, project_id uuid, told text, customer_acknowledged_at timestamp with time zone, customer_acknowledged_by uuid, CONSTRAINT alerts_check CHECK (((project_id IS NULL) = (told IS NULL))), CONSTRAINT alerts_severity_check CHECK ((severity = ANY (ARRAY['warning'::text, 'critical'::text]))) );
CREATE TABLE public.alerts_mailed ( user_id uuid NOT NULL, alert_id uuid NOT NULL, severity text NOT NULL );
CREATE TABLE public.api_tokens ( id uuid DEFAULT gen_random_uuid() NOT NULL, token_hash bytea NOT NULL, last_four text NOT NULL, user_id uuid NOT NULL, name text NOT NULL, scopes text[], created_at timestamp with time zone DEFAULT now() NOT NULL, expires_at timestamp with time zone, last_used_at timestamp with time zone, made_by uuid, CONSTRAINT api_tokens_scopes_check CHECK ((cardinality(scopes) > 0)) );
CREATE TABLE public.audit ( id bigint NOT NULL, at timestamp with time zone DEFAULT now() NOT NULL, actor_id uuid, actor text NOT NULL, role text NOT NULL, via text NOT NULL, impersonation_id uuid, impersonator_id uuid, token_id uuid, address text, request_id text NOT NULL, operation text NOT NULL, target_kind text NOT NULL, target_id text, target_name text, project_id uuid, outcome text NOT NULL, error_code text, details jsonb );
CREATE TABLE public.audit_exports ( first_id bigint NOT NULL, last_id bigint NOT NULL, rows bigint NOT NULL, file text NOT NULL, sha256 text NOT NULL, exported_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT audit_exports_check CHECK ((last_id >= first_id)) );
ALTER TABLE public.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY ( SEQUENCE NAME public.audit_id_seq START WITH 1 INCREMENT BY 1 NO MINVALUE NO MAXVALUE CACHE 1 );
CREATE VIEW public.audit_numbers AS SELECT 'audit'::text AS list, NULL::uuid AS scope, ARRAY[((id >> 14))::text] AS words, count(*) AS number FROM public.audit GROUP BY (id >> 14);
CREATE TABLE public.backup_copies ( backup_id uuid NOT NULL, target_id uuid NOT NULL, error text, at timestamp with time zone DEFAULT now() NOT NULL );
CREATE TABLE public.backup_drill_plan ( only_one boolean DEFAULT true NOT NULL, frequency text DEFAULT 'weekly'::text NOT NULL, next_run_at timestamp with time zone DEFAULT (now() + '7 days'::interval) NOT NULL, CONSTRAINT backup_drill_plan_frequency_check CHECK ((frequency = ANY (ARRAY['off'::text, 'weekly'::text]))), CONSTRAINT backup_drill_plan_only_one_check CHECK (only_one) );
CREATE TABLE public.backup_drills ( id uuid DEFAULT gen_random_uuid() NOT NULL, backup_id uuid NOT NULL, domain text NOT NULL, cause text NOT NULL, status text DEFAULT 'pending'::text NOT NULL, job_id bigint NOT NULL, entries bigint DEFAULT 0 NOT NULL, databases integer DEFAULT 0 NOT NULL, scratch text[] DEFAULT '{}'::text[] NOT NULL, error text, created_at timestamp with time zone DEFAULT now() NOT NULL, ended_at timestamp with time zone, CONSTRAINT backup_drills_cause_check CHECK ((cause = ANY (ARRAY['manual'::text, 'scheduled'::text]))), CONSTRAINT backup_drills_check CHECK (((status = 'pending'::text) = (ended_at IS NULL))), CONSTRAINT backup_drills_check1 CHECK (((status = 'failed'::text) = (error IS NOT NULL))), CONSTRAINT backup_drills_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'succeeded'::text, 'failed'::text]))) );
CREATE TABLE public.backup_repositories ( id uuid DEFAULT gen_random_uuid() NOT NULL, site_id uuid, owner_id uuid, domain text NOT NULL, sealed_key bytea NOT NULL, kept_until timestamp with time zone, created_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT backup_repositories_check CHECK (((site_id IS NOT NULL) OR (owner_id IS NOT NULL))) );
CREATE TABLE public.backup_schedules ( site_id uuid NOT NULL, frequency text NOT NULL, hour smallint NOT NULL, weekday smallint NOT NULL, keep_last smallint NOT NULL, keep_daily smallint NOT NULL, keep_weekly smallint NOT NULL, keep_monthly smallint NOT NULL, next_run_at timestamp with time zone NOT NULL, CONSTRAINT backup_schedules_frequency_check CHECK ((frequency = ANY (ARRAY['hourly'::text, 'daily'::text, 'weekly'::text]))), CONSTRAINT backup_schedules_hour_check CHECK (((hour >= 0) AND (hour <= 23))), CONSTRAINT backup_schedules_keep_daily_check CHECK (((keep_daily >= 0) AND (keep_daily <= 500))), CONSTRAINT backup_schedules_keep_last_check CHECK (((keep_last >= 1) AND (keep_last <= 500))), CONSTRAINT backup_schedules_keep_monthly_check CHECK (((keep_monthly >= 0) AND (keep_monthly <= 500))), CONSTRAINT backup_schedules_keep_weekly_check CHECK (((keep_weekly >= 0) AND (keep_weekly <= 500))), CONSTRAINT backup_schedules_weekday_check CHECK (((weekday >= 0) AND (weekday <= 6))) );
CREATE TABLE public.backup_targets ( id uuid DEFAULT gen_random_uuid() NOT NULL, name text NOT NULL, kind text NOT NULL, settings jsonb NOT NULL, sealed_secret bytea, created_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT backup_targets_check CHECK (((kind = 'local'::text) = (sealed_secret IS NULL))), CONSTRAINT backup_targets_kind_check CHECK ((kind = ANY (ARRAY['local'::text, 'sftp'::text, 's3'::text]))) );
CREATE TABLE public.database_exports ( id uuid DEFAULT gen_random_uuid() NOT NULL, database_id uuid NOT NULL, status text DEFAULT 'running'::text NOT NULL, size bigint, sha256 text, created_at timestamp with time zone DEFAULT now() NOT NULL, expires_at timestamp with time zone NOT NULL, CONSTRAINT database_exports_check CHECK (((status = 'ready'::text) = ((size IS NOT NULL) AND (sha256 IS NOT NULL)))), CONSTRAINT database_exports_status_check CHECK ((status = ANY (ARRAY['running'::text, 'ready'::text]))) );
CREATE TABLE public.database_grants ( user_id uuid NOT NULL, database_id uuid NOT NULL, access text NOT NULL, CONSTRAINT database_grants_access_check CHECK ((access = ANY (ARRAY['full'::text, 'read_only'::text]))) );
CREATE TABLE public.database_users ( id uuid DEFAULT gen_random_uuid() NOT NULL, site_id uuid NOT NULL, engine text NOT NULL, name text NOT NULL, verifier text NOT NULL, status text DEFAULT 'active'::text NOT NULL, wanted integer DEFAULT 1 NOT NULL, applied integer DEFAULT 0 NOT NULL, problem text, created_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT database_users_engine_check CHECK ((engine = ANY (ARRAY['mariadb'::text, 'postgresql'::text]))), CONSTRAINT database_users_status_check CHECK ((status = ANY (ARRAY['active'::text, 'deleting'::text]))) );
CREATE TABLE public.databases ( id uuid DEFAULT gen_random_uuid() NOT NULL, site_id uuid NOT NULL, engine text NOT NULL, name text NOT NULL, status text DEFAULT 'creating'::text NOT NULL, problem text, created_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT databases_engine_check CHECK ((engine = ANY (ARRAY['mariadb'::text, 'postgresql'::text]))), CONSTRAINT databases_status_check CHECK ((status = ANY (ARRAY['creating'::text, 'active'::text, 'deleting'::text]))) );
CREATE TABLE public.dns_records ( id uuid DEFAULT gen_random_uuid() NOT NULL, zone text NOT NULL, name text NOT NULL, type text NOT NULL, ttl integer NOT NULL, data jsonb NOT NULL, managed boolean DEFAULT false NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT dns_records_check CHECK (((data ->> 'type'::text) = type)), CONSTRAINT dns_records_name_check CHECK ((name = lower(name))), CONSTRAINT dns_records_ttl_check CHECK (((ttl >= 60) AND (ttl <= 604800))), CONSTRAINT dns_records_type_check CHECK ((type = ANY (ARRAY['A'::text, 'AAAA'::text, 'CNAME'::text, 'MX'::text, 'TXT'::text, 'SRV'::text, 'CAA'::text, 'NS'::text, 'PTR'::text, 'TLSA'::text, 'SSHFP'::text, 'DS'::text]))) );
CREATE TABLE public.dns_zones ( name text NOT NULL, owner_id uuid NOT NULL, revision bigint DEFAULT 1 NOT NULL, served_revision bigint DEFAULT 0 NOT NULL, serial bigint, problem text, created_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT dns_zones_name_check CHECK ((name = lower(name))) );
CREATE TABLE public.event ( "position" bigint NOT NULL, at timestamp with time zone NOT NULL, kind text NOT NULL, subject text, project_id uuid, node_id uuid, administrators_only boolean NOT NULL, payload jsonb NOT NULL );
CREATE TABLE public.event_inbox ( id bigint NOT NULL, at timestamp with time zone NOT NULL, kind text NOT NULL, subject text, project_id uuid, node_id uuid, administrators_only boolean NOT NULL, payload jsonb NOT NULL );
ALTER TABLE public.event_inbox ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY ( SEQUENCE NAME public.event_inbox_id_seq START WITH 1 INCREMENT BY 1 NO MINVALUE NO MAXVALUE CACHE 1 );
CREATE TABLE public.familiar_sign_ins ( account text NOT NULL, mark text NOT NULL, seen_at timestamp with time zone DEFAULT now() NOT NULL );
CREATE TABLE public.file_uploads ( id uuid DEFAULT gen_random_uuid() NOT NULL, site_id uuid NOT NULL, path text NOT NULL, size bigint NOT NULL, replace boolean NOT NULL, received int8multirange DEFAULT '{}'::int8multirange NOT NULL, status text DEFAULT 'open'::text NOT NULL, sha256 text, created_at timestamp with time zone DEFAULT now() NOT NULL, touched_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT file_uploads_check CHECK (((status = 'finished'::text) = (sha256 IS NOT NULL))), CONSTRAINT file_uploads_size_check CHECK ((size >= 0)), CONSTRAINT file_uploads_status_check CHECK ((status = ANY (ARRAY['open'::text, 'finished'::text]))) );
CREATE TABLE public.hosting_accounts ( user_id uuid NOT NULL, plan_id uuid, suspended_for text, ordered_by text, created_at timestamp with time zone DEFAULT now() NOT NULL );
CREATE TABLE public.hosting_plans ( id uuid DEFAULT gen_random_uuid() NOT NULL, name text NOT NULL, sites integer, databases integer, disk_mib integer, traffic_mib bigint, cpu_percent integer, memory_mib integer, processes integer, created_at timestamp with time zone DEFAULT now() NOT NULL, shell boolean DEFAULT false NOT NULL, CONSTRAINT hosting_plans_cpu_percent_check CHECK ((cpu_percent > 0)), CONSTRAINT hosting_plans_databases_check CHECK ((databases >= 0)), CONSTRAINT hosting_plans_disk_mib_check CHECK ((disk_mib > 0)), CONSTRAINT hosting_plans_memory_mib_check CHECK ((memory_mib > 0)), CONSTRAINT hosting_plans_processes_check CHECK ((processes > 0)), CONSTRAINT hosting_plans_sites_check CHECK ((sites >= 0)), CONSTRAINT hosting_plans_traffic_mib_check CHECK ((traffic_mib > 0)) );
CREATE TABLE public.idempotency_keys ( owner text NOT NULL, key text NOT NULL, operation text NOT NULL, fingerprint bytea NOT NULL, claim uuid NOT NULL, leased_until timestamp with time zone NOT NULL, answer bytea, created_at timestamp with time zone DEFAULT now() NOT NULL );
CREATE TABLE public.impersonations ( id uuid DEFAULT gen_random_uuid() NOT NULL, operator_id uuid NOT NULL, customer_id uuid NOT NULL, reason text NOT NULL, started_at timestamp with time zone DEFAULT now() NOT NULL, expires_at timestamp with time zone NOT NULL, ended_at timestamp with time zone, return_until timestamp with time zone NOT NULL );
CREATE TABLE public.job_lines ( job_id bigint NOT NULL, seq bigint NOT NULL, at timestamp with time zone DEFAULT clock_timestamp() NOT NULL, step integer, message text NOT NULL );
CREATE TABLE public.job_steps ( job_id bigint NOT NULL, "position" integer NOT NULL, name text NOT NULL, status text DEFAULT 'queued'::text NOT NULL, error jsonb, started_at timestamp with time zone, ended_at timestamp with time zone, CONSTRAINT job_steps_check CHECK (((status = 'failed'::text) = (error IS NOT NULL))), CONSTRAINT job_steps_position_check CHECK (("position" > 0)), CONSTRAINT job_steps_status_check CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text]))) );
CREATE SEQUENCE public.job_turns START WITH 1 INCREMENT BY 1 NO MINVALUE NO MAXVALUE CACHE 1;
CREATE TABLE public.jobs ( id bigint NOT NULL, kind text NOT NULL, title text NOT NULL, class text NOT NULL, status text DEFAULT 'queued'::text NOT NULL, progress smallint DEFAULT 0 NOT NULL, site_id uuid, owner_id uuid, tenant uuid GENERATED ALWAYS AS (COALESCE(owner_id, '00000000-0000-0000-0000-000000000000'::uuid)) STORED NOT NULL, flow uuid GENERATED ALWAYS AS (COALESCE(site_id, owner_id, '00000000-0000-0000-0000-000000000000'::uuid)) STORED NOT NULL, parameters jsonb DEFAULT '{}'::jsonb NOT NULL, error jsonb, last_seq bigint DEFAULT 0 NOT NULL, turn bigint, created_at timestamp with time zone DEFAULT now() NOT NULL, started_at timestamp with time zone, ended_at timestamp with time zone, CONSTRAINT jobs_check CHECK (((status = 'failed'::text) = (error IS NOT NULL))), CONSTRAINT jobs_check1 CHECK (((status = ANY (ARRAY['succeeded'::text, 'failed'::text, 'cancelled'::text])) = (ended_at IS NOT NULL))), CONSTRAINT jobs_check2 CHECK (((class <> 'sites'::text) OR (site_id IS NOT NULL))), CONSTRAINT jobs_class_check CHECK ((class = ANY (ARRAY['backups'::text, 'migrations'::text, 'system'::text, 'sites'::text]))), CONSTRAINT jobs_progress_check CHECK (((progress >= 0) AND (progress <= 100))), CONSTRAINT jobs_status_check CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text]))) ) WITH (fillfactor='80');
ALTER TABLE public.jobs ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY ( SEQUENCE NAME public.jobs_id_seq START WITH 1 INCREMENT BY 1 NO MINVALUE NO MAXVALUE CACHE 1 );
CREATE TABLE public.list_changes ( list text NOT NULL, scope uuid, words text[] NOT NULL, number bigint NOT NULL ) WITH (autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0', autovacuum_analyze_threshold='1000000');
CREATE TABLE public.list_counts ( list text NOT NULL, scope uuid, words text[] NOT NULL, number bigint NOT NULL );
CREATE VIEW public.list_numbers AS SELECT list_counts.list, list_counts.scope, list_counts.words, list_counts.number FROM public.list_counts UNION ALL SELECT list_changes.list, list_changes.scope, list_changes.words, list_changes.number FROM public.list_changes;
CREATE TABLE public.mails ( id uuid NOT NULL, message_id text NOT NULL, kind text NOT NULL, user_id uuid, recipient text NOT NULL, subject text NOT NULL, content bytea, perishable boolean NOT NULL, state text DEFAULT 'queued'::text NOT NULL, attempts integer DEFAULT 0 NOT NULL, error text, created_at timestamp with time zone DEFAULT now() NOT NULL, attempt_at timestamp with time zone DEFAULT now() NOT NULL, deadline_at timestamp with time zone NOT NULL, ended_at timestamp with time zone, CONSTRAINT mails_check CHECK (((state = 'queued'::text) = (ended_at IS NULL))), CONSTRAINT mails_check1 CHECK (((state <> 'queued'::text) OR (content IS NOT NULL))), CONSTRAINT mails_check2 CHECK (((state <> 'sent'::text) OR (content IS NULL))), CONSTRAINT mails_state_check CHECK ((state = ANY (ARRAY['queued'::text, 'sent'::text, 'failed'::text]))) );
CREATE TABLE public.member_invitations ( account_id uuid NOT NULL, recipient text NOT NULL, sent_at timestamp with time zone DEFAULT now() NOT NULL );
CREATE TABLE public.panel_installation ( one boolean DEFAULT true NOT NULL, install_id uuid DEFAULT gen_random_uuid() NOT NULL, installed_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT panel_installation_one_check CHECK (one) );
CREATE TABLE public.password_asks ( id bigint NOT NULL, email text, account text NOT NULL, place text NOT NULL, asked_at timestamp with time zone DEFAULT now() NOT NULL );
ALTER TABLE public.password_asks ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY ( SEQUENCE NAME public.password_asks_id_seq START WITH 1 INCREMENT BY 1 NO MINVALUE NO MAXVALUE CACHE 1 );
CREATE TABLE public.password_links ( token_hash bytea NOT NULL, user_id uuid NOT NULL, email text NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, expires_at timestamp with time zone NOT NULL );
CREATE TABLE public.pending_sign_ins ( token_hash bytea NOT NULL, user_id uuid NOT NULL, wrong_codes integer DEFAULT 0 NOT NULL, expires_at timestamp with time zone NOT NULL );
CREATE TABLE public.recovery_codes ( user_id uuid NOT NULL, mark bytea NOT NULL );
CREATE TABLE public.schedule_runs ( id bigint NOT NULL, schedule_id uuid NOT NULL, status text NOT NULL, due_at timestamp with time zone, started_at timestamp with time zone, ended_at timestamp with time zone, exit_status integer, output text DEFAULT ''::text NOT NULL, CONSTRAINT schedule_runs_check CHECK (((status = ANY (ARRAY['queued'::text, 'running'::text])) = (ended_at IS NULL))), CONSTRAINT schedule_runs_status_check CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'succeeded'::text, 'failed'::text, 'timed_out'::text, 'stopped'::text, 'skipped'::text, 'missed'::text, 'interrupted'::text]))) );
ALTER TABLE public.schedule_runs ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY ( SEQUENCE NAME public.schedule_runs_id_seq START WITH 1 INCREMENT BY 1 NO MINVALUE NO MAXVALUE CACHE 1 );
CREATE TABLE public.schedules ( id uuid DEFAULT gen_random_uuid() NOT NULL, site_id uuid NOT NULL, name text NOT NULL, kind text NOT NULL, path text NOT NULL, args text[] DEFAULT '{}'::text[] NOT NULL, cron text NOT NULL, time_zone text NOT NULL, time_limit_seconds integer NOT NULL, enabled boolean DEFAULT true NOT NULL, next_run_at timestamp with time zone, created_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT schedules_check CHECK ((enabled = (next_run_at IS NOT NULL))), CONSTRAINT schedules_check1 CHECK (((kind <> 'url'::text) OR (args = '{}'::text[]))), CONSTRAINT schedules_kind_check CHECK ((kind = ANY (ARRAY['php'::text, 'python'::text, 'node'::text, 'url'::text]))), CONSTRAINT schedules_time_limit_seconds_check CHECK ((time_limit_seconds > 0)) );
CREATE TABLE public.schema_migration ( component text NOT NULL, number integer NOT NULL, name text NOT NULL, checksum text NOT NULL, applied_at timestamp with time zone DEFAULT now() NOT NULL );
CREATE TABLE public.second_factors ( user_id uuid NOT NULL, sealed_secret bytea NOT NULL, confirmed_at timestamp with time zone, last_step bigint DEFAULT 0 NOT NULL );
CREATE TABLE public.sessions ( id uuid DEFAULT gen_random_uuid() NOT NULL, token_hash bytea NOT NULL, user_id uuid NOT NULL, impersonation_id uuid, address text, user_agent text, created_at timestamp with time zone DEFAULT now() NOT NULL, seen_at timestamp with time zone DEFAULT now() NOT NULL, expires_at timestamp with time zone NOT NULL );
CREATE TABLE public.settings ( name text NOT NULL, value jsonb NOT NULL, updated_at timestamp with time zone DEFAULT now() NOT NULL );
CREATE TABLE public.setup_tokens ( token_hash bytea NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, used_at timestamp with time zone );
CREATE TABLE public.sftp_accounts ( id uuid DEFAULT gen_random_uuid() NOT NULL, site_id uuid NOT NULL, name text NOT NULL, folder text NOT NULL, password_hash text, keys text[] NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, kind text DEFAULT 'sftp'::text NOT NULL, CONSTRAINT sftp_accounts_check CHECK (((password_hash IS NOT NULL) OR (cardinality(keys) > 0))), CONSTRAINT sftp_accounts_kind_check CHECK ((kind = ANY (ARRAY['sftp'::text, 'shell'::text]))) );
CREATE TABLE public.sign_in_attempts ( subject text NOT NULL, failures integer NOT NULL, blocked_until timestamp with time zone NOT NULL, forget_at timestamp with time zone NOT NULL );
CREATE TABLE public.sign_in_links ( token_hash bytea NOT NULL, user_id uuid NOT NULL, made_by text NOT NULL, expires_at timestamp with time zone NOT NULL );
CREATE TABLE public.site_apps ( site_id uuid NOT NULL, runtime text NOT NULL, interface text NOT NULL, entry text NOT NULL, folder text NOT NULL, health_path text NOT NULL, last_release integer DEFAULT 0 NOT NULL, wanted_release integer, live_release integer, problem text, CONSTRAINT site_apps_check CHECK (((wanted_release <= last_release) AND (live_release <= last_release))), CONSTRAINT site_apps_interface_check CHECK ((interface = ANY (ARRAY['wsgi'::text, 'asgi'::text]))), CONSTRAINT site_apps_runtime_check CHECK ((runtime = ANY (ARRAY['python'::text, 'node'::text]))) );
CREATE TABLE public.site_backups ( id uuid DEFAULT gen_random_uuid() NOT NULL, repository_id uuid NOT NULL, cause text NOT NULL, status text DEFAULT 'pending'::text NOT NULL, job_id bigint NOT NULL, files bigint, bytes bigint, added_bytes bigint, databases text[] DEFAULT '{}'::text[] NOT NULL, error text, created_at timestamp with time zone DEFAULT now() NOT NULL, completed_at timestamp with time zone, configuration jsonb, CONSTRAINT site_backups_cause_check CHECK ((cause = ANY (ARRAY['manual'::text, 'scheduled'::text, 'final'::text]))), CONSTRAINT site_backups_check CHECK (((status = ANY (ARRAY['completed'::text, 'deleting'::text])) = (completed_at IS NOT NULL))), CONSTRAINT site_backups_check1 CHECK (((status = 'failed'::text) = (error IS NOT NULL))), CONSTRAINT site_backups_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'completed'::text, 'failed'::text, 'deleting'::text]))) );
CREATE TABLE public.site_certificates ( site_id uuid NOT NULL, source text NOT NULL, names text[] NOT NULL, issuer text NOT NULL, not_before timestamp with time zone NOT NULL, not_after timestamp with time zone NOT NULL, fingerprint text NOT NULL, chain text NOT NULL, sealed_key bytea NOT NULL, installed_at timestamp with time zone DEFAULT now() NOT NULL, checked_at timestamp with time zone, served boolean, CONSTRAINT site_certificates_fingerprint_check CHECK ((fingerprint ~ '^[0-9a-f]{64}$'::text)), CONSTRAINT site_certificates_source_check CHECK ((source = ANY (ARRAY['acme'::text, 'uploaded'::text]))) );
CREATE TABLE public.site_disk_use ( site_id uuid NOT NULL, bytes bigint NOT NULL, measured_at timestamp with time zone DEFAULT now() NOT NULL, database_bytes bigint DEFAULT 0 NOT NULL, export_bytes bigint DEFAULT 0 NOT NULL, CONSTRAINT site_disk_use_bytes_check CHECK ((bytes >= 0)), CONSTRAINT site_disk_use_database_bytes_check CHECK ((database_bytes >= 0)), CONSTRAINT site_disk_use_export_bytes_check CHECK ((export_bytes >= 0)) );
CREATE TABLE public.site_domains ( id uuid DEFAULT gen_random_uuid() NOT NULL, site_id uuid NOT NULL, name text NOT NULL, registrable text NOT NULL, redirect_to_primary boolean DEFAULT false NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT site_domains_name_check CHECK ((name = lower(name))) );
CREATE TABLE public.site_handovers ( site_id uuid NOT NULL, generation integer DEFAULT 1 NOT NULL, wordpress_renewed boolean DEFAULT false NOT NULL, failures integer DEFAULT 0 NOT NULL, next_attempt_at timestamp with time zone DEFAULT now() NOT NULL, sealed_wordpress_password bytea );
CREATE SEQUENCE public.site_numbers AS integer START WITH 1001 INCREMENT BY 1 MINVALUE 1001 NO MAXVALUE CACHE 1;
CREATE TABLE public.site_redirects ( id uuid DEFAULT gen_random_uuid() NOT NULL, site_id uuid NOT NULL, path text NOT NULL, target text NOT NULL, status integer NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, below boolean DEFAULT false NOT NULL, CONSTRAINT site_redirects_status_check CHECK ((status = ANY (ARRAY[301, 302, 307, 308]))) );
CREATE TABLE public.site_traffic ( site_id uuid NOT NULL, month date NOT NULL, requests bigint NOT NULL, bytes bigint NOT NULL );
CREATE TABLE public.site_traffic_counted ( site_id uuid NOT NULL, cursor text NOT NULL );
CREATE TABLE public.sites ( id uuid DEFAULT gen_random_uuid() NOT NULL, number integer DEFAULT nextval('public.site_numbers'::regclass) NOT NULL, owner_id uuid NOT NULL, domain text NOT NULL, type text NOT NULL, status text DEFAULT 'creating'::text NOT NULL, reason text, suspended_by text, proxy_target text, php jsonb DEFAULT '{}'::jsonb NOT NULL, cpu_percent integer, memory_mib integer, processes integer, disk_mib integer, force_https boolean DEFAULT false NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, wanted integer DEFAULT 1 NOT NULL, served integer DEFAULT 0 NOT NULL, proxy_addresses inet[] DEFAULT '{}'::inet[] NOT NULL, shell boolean, CONSTRAINT sites_check CHECK (((type = 'proxy'::text) = (proxy_target IS NOT NULL))), CONSTRAINT sites_check1 CHECK (((status = 'suspended'::text) <= (suspended_by IS NOT NULL))), CONSTRAINT sites_cpu_percent_check CHECK ((cpu_percent > 0)), CONSTRAINT sites_disk_mib_check CHECK ((disk_mib > 0)), CONSTRAINT sites_memory_mib_check CHECK ((memory_mib > 0)), CONSTRAINT sites_processes_check CHECK ((processes > 0)), CONSTRAINT sites_status_check CHECK ((status = ANY (ARRAY['creating'::text, 'active'::text, 'suspended'::text, 'deleting'::text, 'failed'::text]))), CONSTRAINT sites_suspended_by_check CHECK ((suspended_by = ANY (ARRAY['owner'::text, 'administrator'::text, 'account'::text]))), CONSTRAINT sites_type_check CHECK ((type = ANY (ARRAY['static'::text, 'php'::text, 'wordpress'::text, 'app'::text, 'proxy'::text]))) );
CREATE TABLE public.users ( id uuid DEFAULT gen_random_uuid() NOT NULL, email text NOT NULL, name text NOT NULL, role text NOT NULL, password_hash text, phone text DEFAULT ''::text NOT NULL, company text DEFAULT ''::text NOT NULL, note text DEFAULT ''::text NOT NULL, suspended_at timestamp with time zone, suspension_reason text, created_at timestamp with time zone DEFAULT now() NOT NULL, last_sign_in_at timestamp with time zone, alert_mail text DEFAULT 'critical'::text NOT NULL, CONSTRAINT users_alert_mail_check CHECK ((alert_mail = ANY (ARRAY['none'::text, 'critical'::text, 'warning'::text]))), CONSTRAINT users_check CHECK (((suspended_at IS NULL) = (suspension_reason IS NULL))), CONSTRAINT users_email_check CHECK ((email = lower(email))), CONSTRAINT users_role_check CHECK ((role = ANY (ARRAY['administrator'::text, 'staff'::text, 'customer'::text, 'member'::text]))) );
CREATE TABLE public.webhook_deliveries ( id uuid DEFAULT gen_random_uuid() NOT NULL, endpoint_id uuid NOT NULL, event_id uuid NOT NULL, status text DEFAULT 'pending'::text NOT NULL, attempts integer DEFAULT 0 NOT NULL, created_at timestamp with time zone NOT NULL, next_attempt_at timestamp with time zone, attempted_at timestamp with time zone, duration_ms integer, response_status integer, error text, CONSTRAINT webhook_deliveries_check CHECK (((status = ANY (ARRAY['pending'::text, 'retrying'::text])) = (next_attempt_at IS NOT NULL))), CONSTRAINT webhook_deliveries_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'delivered'::text, 'retrying'::text, 'failed'::text]))) );
CREATE TABLE public.webhook_endpoints ( id uuid DEFAULT gen_random_uuid() NOT NULL, url text NOT NULL, events text[] NOT NULL, enabled boolean DEFAULT true NOT NULL, sealed_secret bytea NOT NULL, last_four text NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, rotated_at timestamp with time zone, CONSTRAINT webhook_endpoints_events_check CHECK ((cardinality(events) > 0)), CONSTRAINT webhook_endpoints_last_four_check CHECK ((length(last_four) = 4)) );
CREATE TABLE public.webhook_events ( id uuid NOT NULL, event text NOT NULL, at timestamp with time zone NOT NULL, body bytea NOT NULL );
CREATE TABLE public.wordpress_sites ( site_id uuid NOT NULL, title text NOT NULL, locale text DEFAULT ''::text NOT NULL, admin_email text NOT NULL, admin_login text NOT NULL, installed_at timestamp with time zone, cron_scheduled boolean DEFAULT false NOT NULL );
INSERT INTO public.audit OVERRIDING SYSTEM VALUE VALUES (1, '2026-11-29 22:23:19.194382+00', NULL, 'ada@example.test', 'customer', 'api', NULL, NULL, NULL, NULL, 'r1', 'site.create', 'site', NULL, NULL, NULL, 'ok', NULL, NULL);
INSERT INTO public.backup_drill_plan VALUES (true, 'weekly', '2026-12-06 22:23:19.12042+00');
INSERT INTO public.backup_repositories VALUES ('ef09b07b-94aa-4ec8-b116-86bb8fe5e7ca', '1731f7fc-bfc6-4cab-9176-74e156c9a4ac', NULL, 'shop.example.test', '\x6b', NULL, '2026-11-29 22:23:19.194382+00');
INSERT INTO public.backup_targets VALUES ('1912ea0d-f1e1-40ad-a3d1-eb180a77b4d2', 'disk', 'local', '{"path": "/mnt/backups"}', NULL, '2026-11-29 22:23:19.194382+00');
INSERT INTO public.database_users VALUES ('f590a969-1f87-45f9-9225-fd22c909a5c7', '1731f7fc-bfc6-4cab-9176-74e156c9a4ac', 'mariadb', 's1001_shop', 'x', 'active', 1, 0, NULL, '2026-11-29 22:23:19.194382+00');
INSERT INTO public.databases VALUES ('3fc2eec1-a18d-4c43-8143-2d14aa2b2504', '1731f7fc-bfc6-4cab-9176-74e156c9a4ac', 'mariadb', 's1001_shop', 'active', NULL, '2026-11-29 22:23:19.194382+00');
INSERT INTO public.dns_zones VALUES ('example.test', 'bb675cfe-56f2-47a5-93be-ee75f9e2d73c', 1, 0, NULL, NULL, '2026-11-29 22:23:19.194382+00');
INSERT INTO public.jobs OVERRIDING SYSTEM VALUE VALUES (1, 'site.create', 'Create the site', 'sites', 'succeeded', 100, '1731f7fc-bfc6-4cab-9176-74e156c9a4ac', 'bb675cfe-56f2-47a5-93be-ee75f9e2d73c', DEFAULT, DEFAULT, '{}', NULL, 0, NULL, '2026-11-29 22:23:19.194382+00', NULL, '2026-11-29 22:23:19.194382+00');
INSERT INTO public.list_changes VALUES ('audit', NULL, '{0}', 1);
INSERT INTO public.panel_installation VALUES (true, '83d8c4f1-0d6e-4465-8dcc-2303da8d08d2', '2026-11-29 22:23:18.276119+00');
INSERT INTO public.schema_migration VALUES ('shared', 1, 'foundation', 'a615b58440facdb133d3a23016084af1fea6a820089d89cd0d54c0a9a7fd1136', '2026-11-29 22:23:17.750141+00');
INSERT INTO public.schema_migration VALUES ('shared', 2, 'people', 'ea00754aa2f8e2c07e03b9beccefd080748cef398aa7c33136ab4b58ab793a15', '2026-11-29 22:23:17.842222+00');
INSERT INTO public.schema_migration VALUES ('shared', 3, 'alerts', '9c03bef85029b3801de388ead49c8571c29213f53295dec1eacd3829d72d60a0', '2026-11-29 22:23:17.971804+00');
INSERT INTO public.schema_migration VALUES ('shared', 4, 'token_parents', 'fbecab61572abc015c39021de41ce8e0c0eee9a6bb93133a1f0f47710b6b7655', '2026-11-29 22:23:17.996339+00');
INSERT INTO public.schema_migration VALUES ('shared', 5, 'familiar_sign_ins', '8e206bcfec30c530f86da6c52fee45ce6513f82f1cdc47c7db8edf23fdfe1a88', '2026-11-29 22:23:18.006388+00');
INSERT INTO public.schema_migration VALUES ('shared', 6, 'audit_retention', 'b6def942af56a8a5bd676a4fca12c57722a8da5ca6833df929864c36b06c88a9', '2026-11-29 22:23:18.030264+00');
INSERT INTO public.schema_migration VALUES ('shared', 7, 'alerts_told', '98bcf235943e25319c8b15c0870c844840eb9910ef6eacf2d9a39c26ad66c184', '2026-11-29 22:23:18.044511+00');
INSERT INTO public.schema_migration VALUES ('shared', 8, 'lists', 'bb05feae4d60ad0067f4884cda9114ec6818ca539f031cf9e155747a0046bd1f', '2026-11-29 22:23:18.059961+00');
INSERT INTO public.schema_migration VALUES ('shared', 9, 'audit_blocks', '44894d54956cd6c7153bf0d4a9bc1424a5cc77bee83340ea293ac71663aa6878', '2026-11-29 22:23:18.109899+00');
INSERT INTO public.schema_migration VALUES ('shared', 10, 'text_functions', 'd73884917e84a646bd9f6248a9f9cba00ef2d087fc7a286c5eeb969c91f0ded3', '2026-11-29 22:23:18.114896+00');
INSERT INTO public.schema_migration VALUES ('shared', 11, 'alerts_about', '9e2d68a712e35d6e63b6e07bd6add53302d0aaef89d478a0834c363c31fd0b00', '2026-11-29 22:23:18.124374+00');
INSERT INTO public.schema_migration VALUES ('shared', 12, 'mail', '0c0d6a6c7d62b399c005dc70ad0e26b21adcc5f3299425dd6ff750ef58f44a26', '2026-11-29 22:23:18.140418+00');
INSERT INTO public.schema_migration VALUES ('shared', 13, 'password_links', '1dbc918c320b05cdaa6c4393d987c3ebed795e8b5c0359caad3cafdf236c9205', '2026-11-29 22:23:18.158135+00');
INSERT INTO public.schema_migration VALUES ('shared', 14, 'acme', '7be83cb057993ea11a387ed2a48234c425186b0a2ec2c615092f1521dc7f3c38', '2026-11-29 22:23:18.19742+00');
INSERT INTO public.schema_migration VALUES ('shared', 15, 'alert_mail', '22c2a02e826cfdb3b98ce993659f7ab75203115149beb91bc3a38551889891a3', '2026-11-29 22:23:18.211113+00');
INSERT INTO public.schema_migration VALUES ('shared', 16, 'full_tokens', '843b35a76633b4f245309fb46d81df1683068a70697013899f15fd911d992c54', '2026-11-29 22:23:18.229768+00');
INSERT INTO public.schema_migration VALUES ('shared', 17, 'second_factors', '4b87da0a9d2ee4f6db68a441e8dd6bfb0147110fc3bc72d3b7fb994ad715ef8f', '2026-11-29 22:23:18.238735+00');
INSERT INTO public.schema_migration VALUES ('shared', 18, 'acme_challenges', '2f01b8359193f270e70b16502df1279e21bbf31745ccb300beb1d238849dee93', '2026-11-29 22:23:18.260432+00');
INSERT INTO public.schema_migration VALUES ('panel', 1, 'installation', 'eb0117970e8d0ee00c1a78956dd0c701fd95d04473a1ea809485b9ba721feb47', '2026-11-29 22:23:18.276119+00');
INSERT INTO public.schema_migration VALUES ('panel', 2, 'sites', '1da78eacacc3775544d0d5b462e359a766e627e50b881d7f5387db10e5840e90', '2026-11-29 22:23:18.288102+00');
INSERT INTO public.schema_migration VALUES ('panel', 3, 'webhooks', '2358e2e6cd14ac26f83a741ab9f65fb035cfdf75da432460c6a36298c0b6a228', '2026-11-29 22:23:18.350086+00');
INSERT INTO public.schema_migration VALUES ('panel', 4, 'jobs', '7de14223dd03d3417c98a1ceeac3c12640928d8dc7ee317dc264cd9461ff6796', '2026-11-29 22:23:18.494122+00');
INSERT INTO public.schema_migration VALUES ('panel', 5, 'file_uploads', '475c5c0747c79060fa142aebc772ad118d25483771ee4e81c8953aba49ed5c74', '2026-11-29 22:23:18.570114+00');
INSERT INTO public.schema_migration VALUES ('panel', 6, 'service_name', 'bc89e7e5907fac1cb5f08eadf29a6ccb1ebcc4a5376965c3b41368021f6f6eaf', '2026-11-29 22:23:18.600689+00');
INSERT INTO public.schema_migration VALUES ('panel', 7, 'dns', '95cc1ef6ee009441d615e8fb7a2f1486d76ea25eb544ce610654f59ee7711ff7', '2026-11-29 22:23:18.6181+00');
INSERT INTO public.schema_migration VALUES ('panel', 8, 'sites_served', 'e5018e286afde0e141efbd6135110e5ed1562fda57f3db289d2b697d50b34fbb', '2026-11-29 22:23:18.678186+00');
INSERT INTO public.schema_migration VALUES ('panel', 9, 'certificates', '4b11d515d663ed0033b1c443d86c4825a124e48ba99bd7205d0373e9722b9393', '2026-11-29 22:23:18.704968+00');
INSERT INTO public.schema_migration VALUES ('panel', 10, 'plans', '91f95505af14f4da79d1828130648ced87fed7913942d0d7900c80464ee47f81', '2026-11-29 22:23:18.717909+00');
INSERT INTO public.schema_migration VALUES ('panel', 11, 'backups', '15723ac6a5a22c0d8d6ec4fcac2c97dcee4638c36af0a29358eeb3432a0e5774', '2026-11-29 22:23:18.765436+00');
INSERT INTO public.schema_migration VALUES ('panel', 12, 'schedules', 'bd8ccb7550c954b05f90f912c1b7513d456d45b7c1a7e452e5e2cc67a9a55bda', '2026-11-29 22:23:18.868871+00');
INSERT INTO public.schema_migration VALUES ('panel', 13, 'databases', '9454887c00dc2f4f368383705b4da0764b61ad758f24c819a125988893350bb4', '2026-11-29 22:23:18.922108+00');
INSERT INTO public.schema_migration VALUES ('panel', 14, 'apps', '972a2ee4be9930582864b4025e6e6b1573fbd95f7745c21534ecea4c450a9c20', '2026-11-29 22:23:18.975089+00');
INSERT INTO public.schema_migration VALUES ('panel', 15, 'sftp', 'b43b40dc7860f1d60387e3d08938cc6bc9e850541d926a552afef51fa478ea90', '2026-11-29 22:23:18.990906+00');
INSERT INTO public.schema_migration VALUES ('panel', 16, 'sign_in_links', 'd2ffde3c7f4a848efd7b53fdbca9bbfe229f01eacb52bb5e86270b07d388fd93', '2026-11-29 22:23:19.008736+00');
INSERT INTO public.schema_migration VALUES ('panel', 17, 'wordpress', 'e8287f731e325061477c1706ab02ec934aadc2209d402a9d445fda003160bd6d', '2026-11-29 22:23:19.028902+00');
INSERT INTO public.schema_migration VALUES ('panel', 18, 'wordpress_cron', '8aff0c4e6d530be43758fe56c495db3a5aaa5a343c0b8ba27691128bb440bb13', '2026-11-29 22:23:19.05853+00');
INSERT INTO public.schema_migration VALUES ('panel', 19, 'shells', '01a0d47642ef3145a53d0064e085cbdb40da25c8785834eb5e2c6a41274e3dd2', '2026-11-29 22:23:19.060557+00');
INSERT INTO public.schema_migration VALUES ('panel', 20, 'database_shares', 'd2f8b52f7d510fc399878724ee3b1e364fbf5f16fe984d0abf9131e8343c23f8', '2026-11-29 22:23:19.074564+00');
INSERT INTO public.schema_migration VALUES ('panel', 21, 'members', '6a9928e39c40a7f3574a471030956a5dcd4ea18c3204e517f5ed3ffd0a4ade57', '2026-11-29 22:23:19.082352+00');
INSERT INTO public.schema_migration VALUES ('panel', 22, 'disk_of_databases', '7ca6e6b74aa9f073b37e5bc83d551f31524bbb088591a0abaeca5eb9deb59240', '2026-11-29 22:23:19.110123+00');
INSERT INTO public.schema_migration VALUES ('panel', 23, 'backup_drills', '163b44ca57def996e6302d3ba8e6bf79196ca918b6e1d5a9519d0d4afa043584', '2026-11-29 22:23:19.12042+00');
INSERT INTO public.schema_migration VALUES ('panel', 24, 'backup_configuration', '7136f66bb9f505476c7f1ccd3a40d9bed2322a31d51cbfea2a7c582e697911a1', '2026-11-29 22:23:19.150452+00');
INSERT INTO public.schema_migration VALUES ('panel', 25, 'site_handovers', 'f9a83749e811a29a14ec8a52fb02d6c0d86c2b355b990a54d65476e1a5c964a2', '2026-11-29 22:23:19.155847+00');
INSERT INTO public.schema_migration VALUES ('panel', 26, 'drill_alerts', '3f12a250f8fc5b7ac24e2b2523869d2eaf7c8d7d4890c6353d6a04ce9ed0e0f1', '2026-11-29 22:23:19.158398+00');
INSERT INTO public.schema_migration VALUES ('panel', 27, 'handover_passwords', '384b7cf91dd8c3d72c7fb6c544da159090b9c492969d8873d318d8436843d1bb', '2026-11-29 22:23:19.176135+00');
INSERT INTO public.settings VALUES ('service_name', '"Hosting"', '2026-11-29 22:23:18.600689+00');
INSERT INTO public.site_domains VALUES ('5d2d6e2b-09a3-48be-957f-bd6741349a3d', '1731f7fc-bfc6-4cab-9176-74e156c9a4ac', 'shop.example.test', 'example.test', false, '2026-11-29 22:23:19.194382+00');
INSERT INTO public.sites VALUES ('1731f7fc-bfc6-4cab-9176-74e156c9a4ac', 1001, 'bb675cfe-56f2-47a5-93be-ee75f9e2d73c', 'shop.example.test', 'php', 'active', NULL, NULL, NULL, '{}', NULL, NULL, NULL, NULL, false, '2026-11-29 22:23:19.194382+00', 1, 0, '{}', NULL);
INSERT INTO public.users VALUES ('5d8dab5b-f53b-42c6-a7a2-38d13e8bf116', 'root@example.test', 'Root', 'administrator', NULL, '', '', '', NULL, NULL, '2026-11-29 22:23:19.194382+00', NULL, 'critical');
INSERT INTO public.users VALUES ('bb675cfe-56f2-47a5-93be-ee75f9e2d73c', 'ada@example.test', 'Ada', 'customer', NULL, '', '', '', NULL, NULL, '2026-11-29 22:23:19.194382+00', NULL, 'critical');
SELECT pg_catalog.setval('public.audit_id_seq', 1, true);
SELECT pg_catalog.setval('public.event_inbox_id_seq', 1, false);
SELECT pg_catalog.setval('public.job_turns', 1, false);
SELECT pg_catalog.setval('public.jobs_id_seq', 1, true);
SELECT pg_catalog.setval('public.password_asks_id_seq', 1, false);
SELECT pg_catalog.setval('public.schedule_runs_id_seq', 1, false);
SELECT pg_catalog.setval('public.site_numbers', 1001, true);
ALTER TABLE ONLY public.account_members ADD CONSTRAINT account_members_account_id_user_id_site_id_key UNIQUE NULLS NOT DISTINCT (account_id, user_id, site_id);
ALTER TABLE ONLY public.account_members ADD CONSTRAINT account_members_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.account_traffic ADD CONSTRAINT account_traffic_pkey PRIMARY KEY (user_id, month);
ALTER TABLE ONLY public.acme_accounts ADD CONSTRAINT acme_accounts_pkey PRIMARY KEY (directory);
ALTER TABLE ONLY public.acme_certificates ADD CONSTRAINT acme_certificates_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.alerts_mailed ADD CONSTRAINT alerts_mailed_pkey PRIMARY KEY (user_id, alert_id);
ALTER TABLE ONLY public.alerts ADD CONSTRAINT alerts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.api_tokens ADD CONSTRAINT api_tokens_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.api_tokens ADD CONSTRAINT api_tokens_token_hash_key UNIQUE (token_hash);
ALTER TABLE ONLY public.audit_exports ADD CONSTRAINT audit_exports_pkey PRIMARY KEY (first_id);
ALTER TABLE ONLY public.audit ADD CONSTRAINT audit_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.backup_copies ADD CONSTRAINT backup_copies_pkey PRIMARY KEY (backup_id, target_id);
ALTER TABLE ONLY public.backup_drill_plan ADD CONSTRAINT backup_drill_plan_pkey PRIMARY KEY (only_one);
ALTER TABLE ONLY public.backup_drills ADD CONSTRAINT backup_drills_job_id_key UNIQUE (job_id);
ALTER TABLE ONLY public.backup_drills ADD CONSTRAINT backup_drills_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.backup_repositories ADD CONSTRAINT backup_repositories_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.backup_repositories ADD CONSTRAINT backup_repositories_site_id_key UNIQUE (site_id);
ALTER TABLE ONLY public.backup_schedules ADD CONSTRAINT backup_schedules_pkey PRIMARY KEY (site_id);
ALTER TABLE ONLY public.backup_targets ADD CONSTRAINT backup_targets_name_key UNIQUE (name);
ALTER TABLE ONLY public.backup_targets ADD CONSTRAINT backup_targets_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.database_exports ADD CONSTRAINT database_exports_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.database_grants ADD CONSTRAINT database_grants_pkey PRIMARY KEY (user_id, database_id);
ALTER TABLE ONLY public.database_users ADD CONSTRAINT database_users_engine_name_key UNIQUE (engine, name);
ALTER TABLE ONLY public.database_users ADD CONSTRAINT database_users_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.databases ADD CONSTRAINT databases_engine_name_key UNIQUE (engine, name);
ALTER TABLE ONLY public.databases ADD CONSTRAINT databases_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.dns_records ADD CONSTRAINT dns_records_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.dns_zones ADD CONSTRAINT dns_zones_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.event_inbox ADD CONSTRAINT event_inbox_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.event ADD CONSTRAINT event_pkey PRIMARY KEY ("position");
ALTER TABLE ONLY public.familiar_sign_ins ADD CONSTRAINT familiar_sign_ins_pkey PRIMARY KEY (account, mark);
ALTER TABLE ONLY public.file_uploads ADD CONSTRAINT file_uploads_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.hosting_accounts ADD CONSTRAINT hosting_accounts_ordered_by_key UNIQUE (ordered_by);
ALTER TABLE ONLY public.hosting_accounts ADD CONSTRAINT hosting_accounts_pkey PRIMARY KEY (user_id);
ALTER TABLE ONLY public.hosting_plans ADD CONSTRAINT hosting_plans_name_key UNIQUE (name);
ALTER TABLE ONLY public.hosting_plans ADD CONSTRAINT hosting_plans_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.idempotency_keys ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (owner, key);
ALTER TABLE ONLY public.impersonations ADD CONSTRAINT impersonations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.job_lines ADD CONSTRAINT job_lines_pkey PRIMARY KEY (job_id, seq);
ALTER TABLE ONLY public.job_steps ADD CONSTRAINT job_steps_pkey PRIMARY KEY (job_id, "position");
ALTER TABLE ONLY public.jobs ADD CONSTRAINT jobs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.list_counts ADD CONSTRAINT list_counts_once UNIQUE NULLS NOT DISTINCT (list, scope, words);
ALTER TABLE ONLY public.mails ADD CONSTRAINT mails_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.panel_installation ADD CONSTRAINT panel_installation_pkey PRIMARY KEY (one);
ALTER TABLE ONLY public.password_asks ADD CONSTRAINT password_asks_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.password_links ADD CONSTRAINT password_links_pkey PRIMARY KEY (token_hash);
ALTER TABLE ONLY public.pending_sign_ins ADD CONSTRAINT pending_sign_ins_pkey PRIMARY KEY (token_hash);
ALTER TABLE ONLY public.recovery_codes ADD CONSTRAINT recovery_codes_pkey PRIMARY KEY (user_id, mark);
ALTER TABLE ONLY public.schedule_runs ADD CONSTRAINT schedule_runs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.schedules ADD CONSTRAINT schedules_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.schedules ADD CONSTRAINT schedules_site_id_name_key UNIQUE (site_id, name);
ALTER TABLE ONLY public.schema_migration ADD CONSTRAINT schema_migration_pkey PRIMARY KEY (component, number);
ALTER TABLE ONLY public.second_factors ADD CONSTRAINT second_factors_pkey PRIMARY KEY (user_id);
ALTER TABLE ONLY public.sessions ADD CONSTRAINT sessions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.sessions ADD CONSTRAINT sessions_token_hash_key UNIQUE (token_hash);
ALTER TABLE ONLY public.settings ADD CONSTRAINT settings_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.setup_tokens ADD CONSTRAINT setup_tokens_pkey PRIMARY KEY (token_hash);
ALTER TABLE ONLY public.sftp_accounts ADD CONSTRAINT sftp_accounts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.sftp_accounts ADD CONSTRAINT sftp_accounts_site_id_name_key UNIQUE (site_id, name);
ALTER TABLE ONLY public.sign_in_attempts ADD CONSTRAINT sign_in_attempts_pkey PRIMARY KEY (subject);
ALTER TABLE ONLY public.sign_in_links ADD CONSTRAINT sign_in_links_pkey PRIMARY KEY (token_hash);
ALTER TABLE ONLY public.site_apps ADD CONSTRAINT site_apps_pkey PRIMARY KEY (site_id);
ALTER TABLE ONLY public.site_backups ADD CONSTRAINT site_backups_job_id_key UNIQUE (job_id);
ALTER TABLE ONLY public.site_backups ADD CONSTRAINT site_backups_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.site_certificates ADD CONSTRAINT site_certificates_pkey PRIMARY KEY (site_id);
ALTER TABLE ONLY public.site_disk_use ADD CONSTRAINT site_disk_use_pkey PRIMARY KEY (site_id);
ALTER TABLE ONLY public.site_domains ADD CONSTRAINT site_domains_name_key UNIQUE (name);
ALTER TABLE ONLY public.site_domains ADD CONSTRAINT site_domains_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.site_domains ADD CONSTRAINT site_domains_site_id_name_key UNIQUE (site_id, name);
ALTER TABLE ONLY public.site_handovers ADD CONSTRAINT site_handovers_pkey PRIMARY KEY (site_id);
ALTER TABLE ONLY public.site_redirects ADD CONSTRAINT site_redirects_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.site_redirects ADD CONSTRAINT site_redirects_site_id_path_below_key UNIQUE (site_id, path, below);
ALTER TABLE ONLY public.site_traffic_counted ADD CONSTRAINT site_traffic_counted_pkey PRIMARY KEY (site_id);
ALTER TABLE ONLY public.site_traffic ADD CONSTRAINT site_traffic_pkey PRIMARY KEY (site_id, month);
ALTER TABLE ONLY public.sites ADD CONSTRAINT sites_number_key UNIQUE (number);
ALTER TABLE ONLY public.sites ADD CONSTRAINT sites_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.users ADD CONSTRAINT users_email_key UNIQUE (email);
ALTER TABLE ONLY public.users ADD CONSTRAINT users_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.webhook_deliveries ADD CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.webhook_endpoints ADD CONSTRAINT webhook_endpoints_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.webhook_events ADD CONSTRAINT webhook_events_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.wordpress_sites ADD CONSTRAINT wordpress_sites_pkey PRIMARY KEY (site_id);
CREATE INDEX account_members_site ON public.account_members USING btree (site_id);
CREATE INDEX account_members_user ON public.account_members USING btree (user_id);
CREATE INDEX alerts_about ON public.alerts USING btree (resource_kind, resource_id) WHERE (closed_at IS NULL);
CREATE INDEX alerts_mailed_alert ON public.alerts_mailed USING btree (alert_id);
CREATE UNIQUE INDEX alerts_open ON public.alerts USING btree (key) WHERE (closed_at IS NULL);
CREATE INDEX alerts_opened ON public.alerts USING btree (opened_at, id) WHERE (closed_at IS NULL);
CREATE INDEX alerts_project ON public.alerts USING btree (project_id) WHERE (closed_at IS NULL);
CREATE INDEX api_tokens_made_by ON public.api_tokens USING btree (made_by) WHERE (made_by IS NOT NULL);
CREATE INDEX api_tokens_user ON public.api_tokens USING btree (user_id);
CREATE INDEX audit_actor ON public.audit USING btree (actor, id);
CREATE INDEX audit_by_actor ON public.audit USING btree (actor_id, id);
CREATE INDEX audit_by_project ON public.audit USING btree (project_id, id);
CREATE INDEX audit_by_target ON public.audit USING btree (target_kind, target_id, id);
CREATE INDEX audit_operation ON public.audit USING btree (operation, id);
CREATE INDEX audit_words ON public.audit USING gin (public.text_words(ARRAY[actor, operation, target_name, target_id])) WITH (fastupdate=off);
CREATE INDEX backup_copies_target ON public.backup_copies USING btree (target_id);
CREATE INDEX backup_drills_created ON public.backup_drills USING btree (created_at, id);
CREATE UNIQUE INDEX backup_drills_one ON public.backup_drills USING btree ((true)) WHERE (status = 'pending'::text);
CREATE INDEX backup_repositories_kept ON public.backup_repositories USING btree (kept_until) WHERE (kept_until IS NOT NULL);
CREATE INDEX backup_repositories_owner ON public.backup_repositories USING btree (owner_id);
CREATE INDEX backup_schedules_next ON public.backup_schedules USING btree (next_run_at);
CREATE INDEX database_exports_database ON public.database_exports USING btree (database_id, created_at);
CREATE INDEX database_exports_expiry ON public.database_exports USING btree (expires_at);
CREATE INDEX database_grants_database ON public.database_grants USING btree (database_id);
CREATE INDEX database_users_site ON public.database_users USING btree (site_id);
CREATE INDEX database_users_under_way ON public.database_users USING btree (site_id) WHERE ((status <> 'active'::text) OR (applied < wanted));
CREATE INDEX databases_site ON public.databases USING btree (site_id);
CREATE INDEX databases_under_way ON public.databases USING btree (site_id) WHERE (status <> 'active'::text);
CREATE UNIQUE INDEX dns_records_once ON public.dns_records USING btree (zone, name, type, md5((data)::text));
CREATE INDEX dns_records_zone ON public.dns_records USING btree (zone, name, type, created_at, id);
CREATE INDEX dns_zones_owner ON public.dns_zones USING btree (owner_id);
CREATE INDEX familiar_sign_ins_seen ON public.familiar_sign_ins USING btree (seen_at);
CREATE INDEX file_uploads_site ON public.file_uploads USING btree (site_id, created_at, id);
CREATE INDEX file_uploads_touched ON public.file_uploads USING btree (touched_at);
CREATE INDEX hosting_accounts_plan ON public.hosting_accounts USING btree (plan_id);
CREATE INDEX idempotency_keys_created ON public.idempotency_keys USING btree (created_at);
CREATE INDEX impersonations_customer ON public.impersonations USING btree (customer_id, started_at DESC);
CREATE INDEX jobs_created ON public.jobs USING btree (created_at, id);
CREATE INDEX jobs_ended ON public.jobs USING btree (ended_at) WHERE (ended_at IS NOT NULL);
CREATE INDEX jobs_kind ON public.jobs USING btree (kind, created_at, id);
CREATE UNIQUE INDEX jobs_one_at_a_site ON public.jobs USING btree (site_id) WHERE (status = 'running'::text);
CREATE INDEX jobs_owner ON public.jobs USING btree (owner_id, created_at, id);
CREATE INDEX jobs_site ON public.jobs USING btree (site_id, created_at, id);
CREATE INDEX jobs_status ON public.jobs USING btree (status, created_at, id);
CREATE INDEX jobs_turns_of_flows ON public.jobs USING btree (class, flow, turn) WHERE (turn IS NOT NULL);
CREATE INDEX jobs_turns_of_tenants ON public.jobs USING btree (class, tenant, turn) WHERE (turn IS NOT NULL);
CREATE INDEX jobs_waiting ON public.jobs USING btree (class, flow, id) WHERE (status = 'queued'::text);
CREATE INDEX mails_created ON public.mails USING btree (created_at, id);
CREATE INDEX mails_due ON public.mails USING btree (attempt_at) WHERE (state = 'queued'::text);
CREATE INDEX mails_ended ON public.mails USING btree (ended_at) WHERE (ended_at IS NOT NULL);
CREATE INDEX mails_of_user ON public.mails USING btree (user_id, kind, created_at) WHERE (user_id IS NOT NULL);
CREATE INDEX mails_perished ON public.mails USING btree (deadline_at) WHERE ((state = 'failed'::text) AND perishable AND (content IS NOT NULL));
CREATE INDEX member_invitations_account ON public.member_invitations USING btree (account_id, sent_at);
CREATE INDEX member_invitations_recipient ON public.member_invitations USING btree (recipient, sent_at);
CREATE INDEX member_invitations_sent ON public.member_invitations USING btree (sent_at);
CREATE INDEX password_asks_account ON public.password_asks USING btree (account, asked_at);
CREATE INDEX password_asks_asked ON public.password_asks USING btree (asked_at);
CREATE INDEX password_asks_place ON public.password_asks USING btree (place, asked_at);
CREATE INDEX password_asks_waiting ON public.password_asks USING btree (id) WHERE (email IS NOT NULL);
CREATE INDEX password_links_expires ON public.password_links USING btree (expires_at);
CREATE INDEX password_links_user ON public.password_links USING btree (user_id);
CREATE INDEX pending_sign_ins_expires ON public.pending_sign_ins USING btree (expires_at);
CREATE INDEX pending_sign_ins_user ON public.pending_sign_ins USING btree (user_id);
CREATE INDEX schedule_runs_history ON public.schedule_runs USING btree (schedule_id, id);
CREATE UNIQUE INDEX schedule_runs_one ON public.schedule_runs USING btree (schedule_id) WHERE (ended_at IS NULL);
CREATE INDEX schedules_due ON public.schedules USING btree (next_run_at) WHERE (next_run_at IS NOT NULL);
CREATE INDEX sessions_user ON public.sessions USING btree (user_id);
CREATE INDEX sign_in_attempts_forget ON public.sign_in_attempts USING btree (forget_at);
CREATE INDEX sign_in_links_user ON public.sign_in_links USING btree (user_id);
CREATE INDEX site_backups_created ON public.site_backups USING btree (created_at, id);
CREATE INDEX site_backups_repository ON public.site_backups USING btree (repository_id, created_at, id);
CREATE INDEX site_backups_status ON public.site_backups USING btree (status, created_at, id);
CREATE INDEX site_domains_registrable ON public.site_domains USING btree (registrable);
CREATE INDEX sites_created ON public.sites USING btree (created_at, id);
CREATE INDEX sites_domain ON public.sites USING btree (domain, id);
CREATE INDEX sites_owner ON public.sites USING btree (owner_id, domain, id);
CREATE INDEX sites_status ON public.sites USING btree (status, id);
CREATE INDEX sites_unserved ON public.sites USING btree (id) WHERE (served < wanted);
CREATE INDEX users_company ON public.users USING btree (company, id);
CREATE INDEX users_created ON public.users USING btree (created_at, id);
CREATE INDEX users_name ON public.users USING btree (name, id);
CREATE INDEX users_pieces ON public.users USING gin (public.text_pieces(ARRAY[email, name, company, phone])) WITH (fastupdate=off);
CREATE INDEX users_role ON public.users USING btree (role, email);
CREATE INDEX users_suspended ON public.users USING btree (email) WHERE (suspended_at IS NOT NULL);
CREATE INDEX webhook_deliveries_due ON public.webhook_deliveries USING btree (endpoint_id, next_attempt_at) WHERE (next_attempt_at IS NOT NULL);
CREATE INDEX webhook_deliveries_history ON public.webhook_deliveries USING btree (endpoint_id, created_at, id);
CREATE INDEX webhook_deliveries_of_event ON public.webhook_deliveries USING btree (event_id);
CREATE INDEX webhook_events_at ON public.webhook_events USING btree (at);
CREATE TRIGGER audit_counted AFTER INSERT ON public.audit REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION public.count_audit();
CREATE TRIGGER audit_discounted AFTER DELETE ON public.audit REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION public.count_audit();
CREATE TRIGGER audit_exports_stay BEFORE DELETE OR UPDATE ON public.audit_exports FOR EACH ROW EXECUTE FUNCTION public.refuse_change();
CREATE TRIGGER audit_rows_stay BEFORE DELETE OR UPDATE ON public.audit FOR EACH ROW EXECUTE FUNCTION public.refuse_audit_change();
ALTER TABLE public.audit ENABLE ALWAYS TRIGGER audit_rows_stay;
CREATE TRIGGER audit_stays BEFORE TRUNCATE ON public.audit FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_change();
ALTER TABLE public.audit ENABLE ALWAYS TRIGGER audit_stays;
ALTER TABLE ONLY public.account_members ADD CONSTRAINT account_members_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.account_members ADD CONSTRAINT account_members_site_id_fkey FOREIGN KEY (site_id) REFERENCES public.sites(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.account_members ADD CONSTRAINT account_members_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.account_traffic ADD CONSTRAINT account_traffic_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.alerts ADD CONSTRAINT alerts_acknowledged_by_fkey FOREIGN KEY (acknowledged_by) REFERENCES public.users(id);
ALTER TABLE ONLY public.alerts ADD CONSTRAINT alerts_customer_acknowledged_by_fkey FOREIGN KEY (customer_acknowledged_by) REFERENCES public.users(id);
ALTER TABLE ONLY public.alerts_mailed ADD CONSTRAINT alerts_mailed_alert_id_fkey FOREIGN KEY (alert_id) REFERENCES public.alerts(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.alerts_mailed ADD CONSTRAINT alerts_mailed_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.api_tokens ADD CONSTRAINT api_tokens_made_by_fkey FOREIGN KEY (made_by) REFERENCES public.api_tokens(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.api_tokens ADD CONSTRAINT api_tokens_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.backup_copies ADD CONSTRAINT backup_copies_backup_id_fkey FOREIGN KEY (backup_id) REFERENCES public.site_backups(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.backup_copies ADD CONSTRAINT backup_copies_target_id_fkey FOREIGN KEY (target_id) REFERENCES public.backup_targets(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.backup_repositories ADD CONSTRAINT backup_repositories_owner_id_fkey FOREIGN KEY (owner_id) REFERENCES public.users(id);
ALTER TABLE ONLY public.backup_repositories ADD CONSTRAINT backup_repositories_site_id_fkey FOREIGN KEY (site_id) REFERENCES public.sites(id) ON DELETE SET NULL;
ALTER TABLE ONLY public.backup_schedules ADD CONSTRAINT backup_schedules_site_id_fkey FOREIGN KEY (site_id) REFERENCES public.sites(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.database_exports ADD CONSTRAINT database_exports_database_id_fkey FOREIGN KEY (database_id) REFERENCES public.databases(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.database_grants ADD CONSTRAINT database_grants_database_id_fkey FOREIGN KEY (database_id) REFERENCES public.databases(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.database_grants ADD CONSTRAINT database_grants_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.database_users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.database_users ADD CONSTRAINT database_users_site_id_fkey FOREIGN KEY (site_id) REFERENCES public.sites(id);
ALTER TABLE ONLY public.databases ADD CONSTRAINT databases_site_id_fkey FOREIGN KEY (site_id) REFERENCES public.sites(id);
ALTER TABLE ONLY public.dns_records ADD CONSTRAINT dns_records_zone_fkey FOREIGN KEY (zone) REFERENCES public.dns_zones(name) ON DELETE CASCADE;
ALTER TABLE ONLY public.dns_zones ADD CONSTRAINT dns_zones_owner_id_fkey FOREIGN KEY (owner_id) REFERENCES public.users(id);
ALTER TABLE ONLY public.file_uploads ADD CONSTRAINT file_uploads_site_id_fkey FOREIGN KEY (site_id) REFERENCES public.sites(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.hosting_accounts ADD CONSTRAINT hosting_accounts_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES public.hosting_plans(id);
ALTER TABLE ONLY public.hosting_accounts ADD CONSTRAINT hosting_accounts_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.impersonations ADD CONSTRAINT impersonations_customer_id_fkey FOREIGN KEY (customer_id) REFERENCES public.users(id);
ALTER TABLE ONLY public.impersonations ADD CONSTRAINT impersonations_operator_id_fkey FOREIGN KEY (operator_id) REFERENCES public.users(id);
ALTER TABLE ONLY public.job_lines ADD CONSTRAINT job_lines_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.job_steps ADD CONSTRAINT job_steps_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.jobs ADD CONSTRAINT jobs_owner_id_fkey FOREIGN KEY (owner_id) REFERENCES public.users(id) ON DELETE SET NULL;
ALTER TABLE ONLY public.mails ADD CONSTRAINT mails_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE SET NULL;
ALTER TABLE ONLY public.member_invitations ADD CONSTRAINT member_invitations_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.password_links ADD CONSTRAINT password_links_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.pending_sign_ins ADD CONSTRAINT pending_sign_ins_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.recovery_codes ADD CONSTRAINT recovery_codes_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.second_factors(user_id) ON DELETE CASCADE;
ALTER TABLE ONLY public.schedule_runs ADD CONSTRAINT schedule_runs_schedule_id_fkey FOREIGN KEY (schedule_id) REFERENCES public.schedules(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.schedules ADD CONSTRAINT schedules_site_id_fkey FOREIGN KEY (site_id) REFERENCES public.sites(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.second_factors ADD CONSTRAINT second_factors_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.sessions ADD CONSTRAINT sessions_impersonation_id_fkey FOREIGN KEY (impersonation_id) REFERENCES public.impersonations(id);
ALTER TABLE ONLY public.sessions ADD CONSTRAINT sessions_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.sftp_accounts ADD CONSTRAINT sftp_accounts_site_id_fkey FOREIGN KEY (site_id) REFERENCES public.sites(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.sign_in_links ADD CONSTRAINT sign_in_links_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.site_apps ADD CONSTRAINT site_apps_site_id_fkey FOREIGN KEY (site_id) REFERENCES public.sites(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.site_backups ADD CONSTRAINT site_backups_repository_id_fkey FOREIGN KEY (repository_id) REFERENCES public.backup_repositories(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.site_certificates ADD CONSTRAINT site_certificates_site_id_fkey FOREIGN KEY (site_id) REFERENCES public.sites(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.site_disk_use ADD CONSTRAINT site_disk_use_site_id_fkey FOREIGN KEY (site_id) REFERENCES public.sites(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.site_domains ADD CONSTRAINT site_domains_site_id_fkey FOREIGN KEY (site_id) REFERENCES public.sites(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.site_handovers ADD CONSTRAINT site_handovers_site_id_fkey FOREIGN KEY (site_id) REFERENCES public.sites(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.site_redirects ADD CONSTRAINT site_redirects_site_id_fkey FOREIGN KEY (site_id) REFERENCES public.sites(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.site_traffic_counted ADD CONSTRAINT site_traffic_counted_site_id_fkey FOREIGN KEY (site_id) REFERENCES public.sites(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.site_traffic ADD CONSTRAINT site_traffic_site_id_fkey FOREIGN KEY (site_id) REFERENCES public.sites(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.sites ADD CONSTRAINT sites_domain_is_a_name FOREIGN KEY (id, domain) REFERENCES public.site_domains(site_id, name) DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE ONLY public.sites ADD CONSTRAINT sites_owner_id_fkey FOREIGN KEY (owner_id) REFERENCES public.users(id);
ALTER TABLE ONLY public.webhook_deliveries ADD CONSTRAINT webhook_deliveries_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES public.webhook_endpoints(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.webhook_deliveries ADD CONSTRAINT webhook_deliveries_event_id_fkey FOREIGN KEY (event_id) REFERENCES public.webhook_events(id);
ALTER TABLE ONLY public.wordpress_sites ADD CONSTRAINT wordpress_sites_site_id_fkey FOREIGN KEY (site_id) REFERENCES public.sites(id) ON DELETE CASCADE;
