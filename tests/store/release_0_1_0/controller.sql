CREATE FUNCTION public.add_to_month() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO traffic_months AS month (period, vm_id, received, sent, ledgers, resets, samples, first_at)
    VALUES (NEW.period, NEW.vm_id, NEW.received - coalesce(OLD.received, 0), NEW.sent - coalesce(OLD.sent, 0),
            CASE WHEN TG_OP = 'INSERT' THEN 1 ELSE 0 END, NEW.resets - coalesce(OLD.resets, 0),
            NEW.samples - coalesce(OLD.samples, 0), NEW.first_at)
    ON CONFLICT (period, vm_id) DO UPDATE SET
        received = month.received + excluded.received, sent = month.sent + excluded.sent,
        ledgers = month.ledgers + excluded.ledgers, resets = month.resets + excluded.resets,
        samples = month.samples + excluded.samples, first_at = least(month.first_at, excluded.first_at);
    RETURN NULL;
END
$$;
CREATE FUNCTION public.address_text(address inet) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    IF family(address) = 4 THEN
        RETURN host(address);
    END IF;
    RETURN host(address) || '/' || masklen(address);
END
$$;
CREATE FUNCTION public.count_address() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO list_changes VALUES ('addresses by pool', OLD.pool_id, ARRAY[OLD.state], -1);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO list_changes VALUES ('addresses by pool', NEW.pool_id, ARRAY[NEW.state], 1);
    END IF;
    RETURN NULL;
END
$$;
CREATE FUNCTION public.count_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO list_changes
        SELECT 'audit', NULL, ARRAY[(id >> 14)::text], CASE TG_OP WHEN 'INSERT' THEN count(*) ELSE -count(*) END
        FROM changed GROUP BY id >> 14;
    RETURN NULL;
END
$$;
CREATE FUNCTION public.count_task() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.ended_at IS NOT NULL THEN
        INSERT INTO list_changes VALUES ('tasks', NULL, ARRAY[OLD.status, OLD.op, OLD.resource_kind], -1),
                                        ('tasks by project', OLD.project_id, '{}', -1);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.ended_at IS NOT NULL THEN
        INSERT INTO list_changes VALUES ('tasks', NULL, ARRAY[NEW.status, NEW.op, NEW.resource_kind], 1),
                                        ('tasks by project', NEW.project_id, '{}', 1);
    END IF;
    RETURN NULL;
END
$$;
CREATE FUNCTION public.count_task_day() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.ended_at IS NOT NULL THEN
        INSERT INTO list_changes VALUES ('tasks by day', NULL, ARRAY[utc_day(OLD.created_at)], -1);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.ended_at IS NOT NULL THEN
        INSERT INTO list_changes VALUES ('tasks by day', NULL, ARRAY[utc_day(NEW.created_at)], 1);
    END IF;
    RETURN NULL;
END
$$;
CREATE FUNCTION public.count_vm() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.deleted_at IS NULL THEN
        INSERT INTO list_changes VALUES ('vms by node', OLD.node_id, ARRAY[OLD.status], -1),
                                        ('vms by project', OLD.project_id, ARRAY[OLD.status], -1);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.deleted_at IS NULL THEN
        INSERT INTO list_changes VALUES ('vms by node', NEW.node_id, ARRAY[NEW.status], 1),
                                        ('vms by project', NEW.project_id, ARRAY[NEW.status], 1);
    END IF;
    RETURN NULL;
END
$$;
CREATE FUNCTION public.count_vm_day() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.deleted_at IS NULL THEN
        INSERT INTO list_changes VALUES ('vms by day', NULL, ARRAY[utc_day(OLD.created_at)], -1);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.deleted_at IS NULL THEN
        INSERT INTO list_changes VALUES ('vms by day', NULL, ARRAY[utc_day(NEW.created_at)], 1);
    END IF;
    RETURN NULL;
END
$$;
CREATE FUNCTION public.keep_vm_texts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO vm_texts (vm_id, name, hostname) VALUES (NEW.id, NEW.name, NEW.hostname)
    ON CONFLICT (vm_id) DO UPDATE SET name = excluded.name, hostname = excluded.hostname;
    RETURN NULL;
END
$$;
CREATE FUNCTION public.note_node_capacity() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    takes boolean := NEW.state = 'online' AND NEW.mode = 'managed' AND NOT NEW.maintenance AND NEW.deleted_at IS NULL
                     AND NEW.capacity IS NOT NULL AND NEW.disk_level <> 'critical';
    cpus double precision := coalesce((NEW.capacity->>'cpus')::double precision, 0) * NEW.cpu_overcommit;
    memory double precision := coalesce((NEW.capacity->>'memory_mib')::double precision, 0) * NEW.memory_overcommit;
    disk double precision := coalesce((NEW.capacity->>'disk_gib')::double precision, 0) * NEW.disk_overcommit;
    missing text[] := CASE jsonb_typeof(NEW.facts->'network_lacks')
                      WHEN 'object' THEN ARRAY(SELECT jsonb_object_keys(NEW.facts->'network_lacks')) ELSE '{}' END;
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO node_capacity (node_id, node_name, location_id, takes_machines, vcpus, memory_mib, disk_gib, lacks)
        VALUES (NEW.id, NEW.name, NEW.location_id, takes, cpus, memory, disk, missing);
    ELSE
        UPDATE node_capacity SET node_name = NEW.name, location_id = NEW.location_id, takes_machines = takes,
            vcpus = cpus, memory_mib = memory, disk_gib = disk, lacks = missing
        WHERE node_id = NEW.id;
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION public.pool_address(pool cidr, prefix_len integer, slot bigint) RETURNS inet LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE family(pool)
        WHEN 4 THEN set_masklen(pool::inet, 32) + slot
        ELSE set_masklen(set_masklen(pool::inet, 128) | (
            SELECT string_agg(to_hex(substring(bits FROM 16 * part + 1 FOR 16)::bit(16)::integer), ':' ORDER BY part)
            FROM (SELECT (repeat('0', 64)::bit(64) || slot::bit(64)) << (128 - prefix_len) AS bits) shifted,
                 generate_series(0, 7) part
        )::inet, prefix_len)
    END
$$;
CREATE FUNCTION public.promise_room() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    held boolean := TG_OP <> 'INSERT' AND OLD.deleted_at IS NULL AND NOT (OLD.status = 'failed' AND OLD.built_at IS NULL);
    holds boolean := TG_OP <> 'DELETE' AND NEW.deleted_at IS NULL AND NOT (NEW.status = 'failed' AND NEW.built_at IS NULL);
BEGIN
    IF held AND holds AND (OLD.node_id, OLD.moving_to, OLD.moved_from)
                          IS NOT DISTINCT FROM (NEW.node_id, NEW.moving_to, NEW.moved_from) THEN
        UPDATE node_capacity SET
            promised_vcpus = promised_vcpus + NEW.vcpus - OLD.vcpus,
            promised_memory_mib = promised_memory_mib + NEW.memory_mib - OLD.memory_mib,
            promised_disk_gib = promised_disk_gib + NEW.disk_gib - OLD.disk_gib
        WHERE node_id IN (NEW.node_id, NEW.moving_to, NEW.moved_from);
        RETURN NULL;
    END IF;
    IF held THEN
        UPDATE node_capacity SET
            promised_vcpus = promised_vcpus - OLD.vcpus,
            promised_memory_mib = promised_memory_mib - OLD.memory_mib,
            promised_disk_gib = promised_disk_gib - OLD.disk_gib
        WHERE node_id IN (OLD.node_id, OLD.moving_to, OLD.moved_from);
    END IF;
    IF holds THEN
        UPDATE node_capacity SET
            promised_vcpus = promised_vcpus + NEW.vcpus,
            promised_memory_mib = promised_memory_mib + NEW.memory_mib,
            promised_disk_gib = promised_disk_gib + NEW.disk_gib
        WHERE node_id IN (NEW.node_id, NEW.moving_to, NEW.moved_from);
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION public.promise_room_to_new() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE node_capacity SET
        promised_vcpus = promised_vcpus + wanted.vcpus,
        promised_memory_mib = promised_memory_mib + wanted.memory_mib,
        promised_disk_gib = promised_disk_gib + wanted.disk_gib
    FROM (SELECT made.node_id, sum(made.vcpus) AS vcpus, sum(made.memory_mib) AS memory_mib, sum(made.disk_gib) AS disk_gib
          FROM made WHERE made.deleted_at IS NULL AND NOT (made.status = 'failed' AND made.built_at IS NULL)
          GROUP BY made.node_id) wanted
    WHERE node_capacity.node_id = wanted.node_id;
    RETURN NULL;
END $$;
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
CREATE FUNCTION public.utc_day(at timestamp with time zone) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT ((at AT TIME ZONE 'UTC')::date - date '2000-01-01')::text
$$;
CREATE FUNCTION public.utc_day_begins(day text) RETURNS timestamp with time zone LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT (date '2000-01-01' + day::integer)::timestamp AT TIME ZONE 'UTC'
$$;
CREATE FUNCTION public.wanted_pieces(wanted text) RETURNS text[] LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT array_agg(DISTINCT substr(lower(wanted), place, least(3, length(lower(wanted)))))
    FROM generate_series(1, greatest(1, length(lower(wanted)) - 2)) place
$$;
CREATE FUNCTION public.wanted_words(wanted text) RETURNS tsquery LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT string_agg(quote_literal(left(word, 100)) || ':*', ' & ')::tsquery
    FROM regexp_split_to_table(lower(wanted), '[^[:alnum:]]+') word WHERE word <> ''
$$;
CREATE TABLE public.acme_accounts ( directory text NOT NULL, sealed_key bytea NOT NULL, contact text NOT NULL, url text );
CREATE TABLE public.acme_certificates ( name text NOT NULL, directory text NOT NULL, names text[] NOT NULL, chain text, sealed_key bytea, issuer text, not_before timestamp with time zone, not_after timestamp with time zone, order_key bytea, order_began timestamp with time zone, order_url text, due_at timestamp with time zone DEFAULT now() NOT NULL, failures integer DEFAULT 0 NOT NULL, last_error text, failed_at timestamp with time zone, challenge text DEFAULT 'http-01'::text NOT NULL, told_at timestamp with time zone, CONSTRAINT acme_certificates_challenge_check CHECK ((challenge = ANY (ARRAY['http-01'::text, 'dns-01'::text]))), CONSTRAINT acme_certificates_check CHECK ((num_nulls(chain, sealed_key, issuer, not_before, not_after) = ANY (ARRAY[0, 5]))), CONSTRAINT acme_certificates_check1 CHECK ((num_nulls(order_key, order_began) = ANY (ARRAY[0, 2]))), CONSTRAINT acme_certificates_check2 CHECK (((order_url IS NULL) OR (order_key IS NOT NULL))) );
CREATE TABLE public.allocations ( pool_id uuid NOT NULL, ip inet NOT NULL, state text NOT NULL, vm_id uuid, nic_id uuid, is_primary boolean DEFAULT false NOT NULL, note text, changed_at timestamp with time zone DEFAULT now() NOT NULL, slot bigint NOT NULL, reservation_id uuid, release_id bigint, carried boolean DEFAULT false NOT NULL, CONSTRAINT allocations_check CHECK (((state = ANY (ARRAY['allocated'::text, 'releasing'::text])) = (vm_id IS NOT NULL))), CONSTRAINT allocations_check1 CHECK (((state = 'reserved'::text) = (reservation_id IS NOT NULL))), CONSTRAINT allocations_check2 CHECK (((state = 'releasing'::text) = (release_id IS NOT NULL))), CONSTRAINT allocations_check3 CHECK (((NOT carried) OR (state = 'blocked'::text))), CONSTRAINT allocations_state_check CHECK ((state = ANY (ARRAY['allocated'::text, 'releasing'::text, 'reserved'::text, 'blocked'::text]))) );
CREATE VIEW public.address_numbers AS SELECT 'addresses by pool'::text AS list, pool_id AS scope, ARRAY[state] AS words, count(*) AS number FROM public.allocations GROUP BY pool_id, state;
CREATE TABLE public.alerts ( id uuid DEFAULT gen_random_uuid() NOT NULL, key text NOT NULL, severity text NOT NULL, message text NOT NULL, resource_kind text, resource_id text, opened_at timestamp with time zone DEFAULT now() NOT NULL, acknowledged_at timestamp with time zone, acknowledged_by uuid, closed_at timestamp with time zone, project_id uuid, told text, customer_acknowledged_at timestamp with time zone, customer_acknowledged_by uuid, CONSTRAINT alerts_check CHECK (((project_id IS NULL) = (told IS NULL))), CONSTRAINT alerts_severity_check CHECK ((severity = ANY (ARRAY['warning'::text, 'critical'::text]))) );
CREATE TABLE public.alerts_mailed ( user_id uuid NOT NULL, alert_id uuid NOT NULL, severity text NOT NULL );
CREATE TABLE public.api_tokens ( id uuid DEFAULT gen_random_uuid() NOT NULL, token_hash bytea NOT NULL, last_four text NOT NULL, user_id uuid NOT NULL, name text NOT NULL, scopes text[], created_at timestamp with time zone DEFAULT now() NOT NULL, expires_at timestamp with time zone, last_used_at timestamp with time zone, made_by uuid, CONSTRAINT api_tokens_scopes_check CHECK ((cardinality(scopes) > 0)) );
CREATE TABLE public.audit ( id bigint NOT NULL, at timestamp with time zone DEFAULT now() NOT NULL, actor_id uuid, actor text NOT NULL, role text NOT NULL, via text NOT NULL, impersonation_id uuid, impersonator_id uuid, token_id uuid, address text, request_id text NOT NULL, operation text NOT NULL, target_kind text NOT NULL, target_id text, target_name text, project_id uuid, outcome text NOT NULL, error_code text, details jsonb );
CREATE TABLE public.audit_exports ( first_id bigint NOT NULL, last_id bigint NOT NULL, rows bigint NOT NULL, file text NOT NULL, sha256 text NOT NULL, exported_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT audit_exports_check CHECK ((last_id >= first_id)) );
ALTER TABLE public.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY ( SEQUENCE NAME public.audit_id_seq START WITH 1 INCREMENT BY 1 NO MINVALUE NO MAXVALUE CACHE 1 );
CREATE VIEW public.audit_numbers AS SELECT 'audit'::text AS list, NULL::uuid AS scope, ARRAY[((id >> 14))::text] AS words, count(*) AS number FROM public.audit GROUP BY (id >> 14);
CREATE TABLE public.authority ( singleton boolean DEFAULT true NOT NULL, certificate text NOT NULL, sealed_key bytea NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT authority_singleton_check CHECK (singleton) );
CREATE TABLE public.carried_addresses ( node_id uuid NOT NULL, vm_id uuid NOT NULL, ip inet NOT NULL );
CREATE TABLE public.console_tickets ( ticket_hash bytea NOT NULL, vm_id uuid NOT NULL, kind text NOT NULL, user_id uuid NOT NULL, session_id uuid, token_id uuid, expires_at timestamp with time zone NOT NULL, CONSTRAINT console_tickets_check CHECK (((session_id IS NULL) <> (token_id IS NULL))), CONSTRAINT console_tickets_kind_check CHECK ((kind = ANY (ARRAY['vnc'::text, 'serial'::text]))) );
CREATE TABLE public.controller_backups ( id bigint NOT NULL, ended_at timestamp with time zone DEFAULT now() NOT NULL, every_hours double precision NOT NULL, place text NOT NULL, archive text, size_bytes bigint, error text, CONSTRAINT controller_backups_check CHECK (((error IS NULL) = (archive IS NOT NULL))), CONSTRAINT controller_backups_every_hours_check CHECK ((every_hours > (0)::double precision)) );
ALTER TABLE public.controller_backups ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY ( SEQUENCE NAME public.controller_backups_id_seq START WITH 1 INCREMENT BY 1 NO MINVALUE NO MAXVALUE CACHE 1 );
CREATE TABLE public.tasks ( id uuid DEFAULT gen_random_uuid() NOT NULL, op text NOT NULL, status text DEFAULT 'queued'::text NOT NULL, resource_kind text NOT NULL, resource_id uuid NOT NULL, resource_name text NOT NULL, node_id uuid, project_id uuid, parameters jsonb DEFAULT '{}'::jsonb NOT NULL, caller jsonb NOT NULL, progress smallint DEFAULT 0 NOT NULL, message text DEFAULT ''::text NOT NULL, error_code text, error_message text, cancel_requested boolean DEFAULT false NOT NULL, last_position bigint DEFAULT 0 NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, started_at timestamp with time zone, ended_at timestamp with time zone, deadline_at timestamp with time zone NOT NULL, request_id text, traceparent text, CONSTRAINT tasks_check CHECK (((status = ANY (ARRAY['succeeded'::text, 'failed'::text, 'cancelled'::text])) = (ended_at IS NOT NULL))), CONSTRAINT tasks_progress_check CHECK (((progress >= 0) AND (progress <= 100))), CONSTRAINT tasks_resource_kind_check CHECK ((resource_kind = ANY (ARRAY['vm'::text, 'node'::text, 'image'::text]))), CONSTRAINT tasks_status_check CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text]))) ) WITH (fillfactor='70');
CREATE TABLE public.vms ( id uuid DEFAULT gen_random_uuid() NOT NULL, name text NOT NULL, hostname text NOT NULL, project_id uuid NOT NULL, node_id uuid, plan_id uuid, image_id uuid NOT NULL, vcpus integer NOT NULL, memory_mib integer NOT NULL, disk_gib integer NOT NULL, status text NOT NULL, status_reason text, observed_state text, observed_at timestamp with time zone, access_mode text NOT NULL, ssh_keys text[] DEFAULT '{}'::text[] NOT NULL, sealed_seed bytea, built_at timestamp with time zone, rate_mbps integer, idempotency_owner text, idempotency_key text, created_by uuid, created_at timestamp with time zone DEFAULT now() NOT NULL, deleted_at timestamp with time zone, net_wanted bigint DEFAULT 1 NOT NULL, net_applied bigint DEFAULT 0 NOT NULL, net_error text, net_failed_at timestamp with time zone, throttle_mbps integer, traffic_isolated boolean DEFAULT false NOT NULL, desired_power text DEFAULT 'stopped'::text NOT NULL, restart_policy text DEFAULT 'on_failure'::text NOT NULL, restart_failures integer DEFAULT 0 NOT NULL, restart_after timestamp with time zone, running_since timestamp with time zone, observed_cause text, unconfirmed boolean DEFAULT false NOT NULL, labels jsonb DEFAULT '{}'::jsonb NOT NULL, protected boolean DEFAULT false NOT NULL, cpu_mode text DEFAULT 'default'::text NOT NULL, cpu_next_mode text, backed_up timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL, copies_until timestamp with time zone, moving_to uuid, moved_from uuid, CONSTRAINT vms_access_mode_check CHECK ((access_mode = ANY (ARRAY['root_password'::text, 'root_key'::text, 'user_sudo'::text]))), CONSTRAINT vms_check CHECK ((moving_to <> node_id)), CONSTRAINT vms_check1 CHECK ((moved_from <> node_id)), CONSTRAINT vms_desired_power_check CHECK ((desired_power = ANY (ARRAY['running'::text, 'stopped'::text]))), CONSTRAINT vms_disk_gib_check CHECK ((disk_gib > 0)), CONSTRAINT vms_memory_mib_check CHECK ((memory_mib >= 64)), CONSTRAINT vms_restart_policy_check CHECK ((restart_policy = ANY (ARRAY['always'::text, 'on_failure'::text, 'never'::text]))), CONSTRAINT vms_throttle_mbps_check CHECK ((throttle_mbps > 0)), CONSTRAINT vms_vcpus_check CHECK ((vcpus > 0)) ) WITH (fillfactor='70');
CREATE VIEW public.day_numbers AS SELECT 'vms by day'::text AS list, NULL::uuid AS scope, ARRAY[public.utc_day(vms.created_at)] AS words, count(*) AS number FROM public.vms WHERE (vms.deleted_at IS NULL) GROUP BY (public.utc_day(vms.created_at)) UNION ALL SELECT 'tasks by day'::text AS list, NULL::uuid AS scope, ARRAY[public.utc_day(tasks.created_at)] AS words, count(*) AS number FROM public.tasks WHERE (tasks.ended_at IS NOT NULL) GROUP BY (public.utc_day(tasks.created_at));
CREATE TABLE public.event ( "position" bigint NOT NULL, at timestamp with time zone NOT NULL, kind text NOT NULL, subject text, project_id uuid, node_id uuid, administrators_only boolean NOT NULL, payload jsonb NOT NULL );
CREATE TABLE public.event_inbox ( id bigint NOT NULL, at timestamp with time zone NOT NULL, kind text NOT NULL, subject text, project_id uuid, node_id uuid, administrators_only boolean NOT NULL, payload jsonb NOT NULL );
ALTER TABLE public.event_inbox ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY ( SEQUENCE NAME public.event_inbox_id_seq START WITH 1 INCREMENT BY 1 NO MINVALUE NO MAXVALUE CACHE 1 );
CREATE TABLE public.familiar_sign_ins ( account text NOT NULL, mark text NOT NULL, seen_at timestamp with time zone DEFAULT now() NOT NULL );
CREATE TABLE public.idempotency_keys ( owner text NOT NULL, key text NOT NULL, operation text NOT NULL, fingerprint bytea NOT NULL, claim uuid NOT NULL, leased_until timestamp with time zone NOT NULL, answer bytea, created_at timestamp with time zone DEFAULT now() NOT NULL );
CREATE TABLE public.images ( id uuid DEFAULT gen_random_uuid() NOT NULL, slug text NOT NULL, name text NOT NULL, os_family text NOT NULL, distribution text NOT NULL, release text NOT NULL, login_user text NOT NULL, format text NOT NULL, source text NOT NULL, url text, checksum_url text, digest_algorithm text DEFAULT 'sha256'::text NOT NULL, digest text, size_bytes bigint, min_disk_gib integer DEFAULT 1 NOT NULL, min_memory_mib integer DEFAULT 64 NOT NULL, custom boolean NOT NULL, enabled boolean DEFAULT true NOT NULL, refreshed_at timestamp with time zone, created_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT images_check CHECK (((source = 'url'::text) = (url IS NOT NULL))), CONSTRAINT images_digest_algorithm_check CHECK ((digest_algorithm = ANY (ARRAY['sha256'::text, 'sha512'::text]))), CONSTRAINT images_format_check CHECK ((format = ANY (ARRAY['qcow2'::text, 'raw'::text]))), CONSTRAINT images_os_family_check CHECK ((os_family = ANY (ARRAY['linux'::text, 'windows'::text]))), CONSTRAINT images_source_check CHECK ((source = ANY (ARRAY['url'::text, 'file'::text]))) );
CREATE TABLE public.impersonations ( id uuid DEFAULT gen_random_uuid() NOT NULL, operator_id uuid NOT NULL, customer_id uuid NOT NULL, reason text NOT NULL, started_at timestamp with time zone DEFAULT now() NOT NULL, expires_at timestamp with time zone NOT NULL, ended_at timestamp with time zone, return_until timestamp with time zone NOT NULL );
CREATE TABLE public.list_changes ( list text NOT NULL, scope uuid, words text[] NOT NULL, number bigint NOT NULL ) WITH (autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0', autovacuum_analyze_threshold='1000000');
CREATE TABLE public.list_counts ( list text NOT NULL, scope uuid, words text[] NOT NULL, number bigint NOT NULL );
CREATE VIEW public.list_numbers AS SELECT list_counts.list, list_counts.scope, list_counts.words, list_counts.number FROM public.list_counts UNION ALL SELECT list_changes.list, list_changes.scope, list_changes.words, list_changes.number FROM public.list_changes;
CREATE TABLE public.locations ( id uuid DEFAULT gen_random_uuid() NOT NULL, name text NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL );
CREATE TABLE public.machine_backup_stores ( vm_id uuid NOT NULL, node_id uuid NOT NULL );
CREATE TABLE public.machine_backups ( id uuid NOT NULL, vm_id uuid NOT NULL, node_id uuid NOT NULL, begun_at timestamp with time zone NOT NULL, completed_at timestamp with time zone NOT NULL, disks jsonb NOT NULL, stored_bytes bigint NOT NULL, frozen boolean NOT NULL, removed_at timestamp with time zone, superseded_at timestamp with time zone );
CREATE TABLE public.mails ( id uuid NOT NULL, message_id text NOT NULL, kind text NOT NULL, user_id uuid, recipient text NOT NULL, subject text NOT NULL, content bytea, perishable boolean NOT NULL, state text DEFAULT 'queued'::text NOT NULL, attempts integer DEFAULT 0 NOT NULL, error text, created_at timestamp with time zone DEFAULT now() NOT NULL, attempt_at timestamp with time zone DEFAULT now() NOT NULL, deadline_at timestamp with time zone NOT NULL, ended_at timestamp with time zone, CONSTRAINT mails_check CHECK (((state = 'queued'::text) = (ended_at IS NULL))), CONSTRAINT mails_check1 CHECK (((state <> 'queued'::text) OR (content IS NOT NULL))), CONSTRAINT mails_check2 CHECK (((state <> 'sent'::text) OR (content IS NULL))), CONSTRAINT mails_state_check CHECK ((state = ANY (ARRAY['queued'::text, 'sent'::text, 'failed'::text]))) );
CREATE TABLE public.networks ( id uuid DEFAULT gen_random_uuid() NOT NULL, name text NOT NULL, "default" boolean DEFAULT false NOT NULL, mtu integer DEFAULT 1500 NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT networks_mtu_check CHECK (((mtu >= 576) AND (mtu <= 9216))) );
CREATE TABLE public.nics ( id uuid DEFAULT gen_random_uuid() NOT NULL, vm_id uuid NOT NULL, network_id uuid NOT NULL, "position" smallint NOT NULL, mac macaddr NOT NULL );
CREATE TABLE public.node_bootstraps ( id uuid DEFAULT gen_random_uuid() NOT NULL, token_hash bytea NOT NULL, name text NOT NULL, location_id uuid NOT NULL, mode text NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, expires_at timestamp with time zone NOT NULL, used_at timestamp with time zone, node_id uuid, public_key bytea, CONSTRAINT node_bootstraps_check CHECK ((((used_at IS NULL) = (node_id IS NULL)) AND ((used_at IS NULL) = (public_key IS NULL)))), CONSTRAINT node_bootstraps_mode_check CHECK ((mode = ANY (ARRAY['observe'::text, 'managed'::text]))) );
CREATE TABLE public.node_capacity ( node_id uuid NOT NULL, node_name text NOT NULL, location_id uuid NOT NULL, takes_machines boolean NOT NULL, vcpus double precision NOT NULL, memory_mib double precision NOT NULL, disk_gib double precision NOT NULL, lacks text[] NOT NULL, promised_vcpus bigint DEFAULT 0 NOT NULL, promised_memory_mib bigint DEFAULT 0 NOT NULL, promised_disk_gib bigint DEFAULT 0 NOT NULL, free_share double precision GENERATED ALWAYS AS (COALESCE(LEAST(((1)::double precision - ((promised_vcpus)::double precision / NULLIF(vcpus, (0)::double precision))), ((1)::double precision - ((promised_memory_mib)::double precision / NULLIF(memory_mib, (0)::double precision))), ((1)::double precision - ((promised_disk_gib)::double precision / NULLIF(disk_gib, (0)::double precision)))), (0)::double precision)) STORED NOT NULL ) WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
CREATE TABLE public.node_certificates ( serial text NOT NULL, node_id uuid NOT NULL, issued_at timestamp with time zone DEFAULT now() NOT NULL, expires_at timestamp with time zone NOT NULL, revoked_at timestamp with time zone );
CREATE TABLE public.node_images ( node_id uuid NOT NULL, image_id uuid NOT NULL, digest text NOT NULL, size_bytes bigint NOT NULL, pulled_at timestamp with time zone NOT NULL );
CREATE TABLE public.node_samples ( node_id uuid NOT NULL, hour timestamp with time zone NOT NULL, samples integer NOT NULL, load_1m double precision NOT NULL, memory_free_mib double precision NOT NULL, disk_free_gib double precision NOT NULL );
CREATE TABLE public.nodes ( id uuid DEFAULT gen_random_uuid() NOT NULL, name text NOT NULL, location_id uuid NOT NULL, state text DEFAULT 'pending'::text NOT NULL, mode text DEFAULT 'managed'::text NOT NULL, maintenance boolean DEFAULT false NOT NULL, cpu_overcommit double precision DEFAULT 4 NOT NULL, memory_overcommit double precision DEFAULT 1 NOT NULL, disk_overcommit double precision DEFAULT 1 NOT NULL, host_uuid uuid NOT NULL, boot_id text, facts jsonb, capacity jsonb, preflight jsonb, preflight_at timestamp with time zone, inventory_at timestamp with time zone, connected_at timestamp with time zone, seen_at timestamp with time zone, created_at timestamp with time zone DEFAULT now() NOT NULL, deleted_at timestamp with time zone, network_probe jsonb, network_probed_at timestamp with time zone, disk_level text DEFAULT 'ok'::text NOT NULL, agent_version text, agent_protocol integer, state_reason text, agent_release text, unheard boolean DEFAULT false NOT NULL, lost_at timestamp with time zone, CONSTRAINT nodes_cpu_overcommit_check CHECK ((cpu_overcommit > (0)::double precision)), CONSTRAINT nodes_disk_level_check CHECK ((disk_level = ANY (ARRAY['ok'::text, 'warning'::text, 'critical'::text]))), CONSTRAINT nodes_disk_overcommit_check CHECK ((disk_overcommit > (0)::double precision)), CONSTRAINT nodes_memory_overcommit_check CHECK ((memory_overcommit > (0)::double precision)), CONSTRAINT nodes_mode_check CHECK ((mode = ANY (ARRAY['observe'::text, 'managed'::text]))), CONSTRAINT nodes_state_check CHECK ((state = ANY (ARRAY['pending'::text, 'online'::text, 'offline'::text]))) );
CREATE TABLE public.observed_domains ( node_id uuid NOT NULL, uuid uuid NOT NULL, name text NOT NULL, vm_id uuid, state text NOT NULL, vcpus integer NOT NULL, memory_mib integer NOT NULL, seen_at timestamp with time zone NOT NULL );
CREATE TABLE public.password_asks ( id bigint NOT NULL, email text, account text NOT NULL, place text NOT NULL, asked_at timestamp with time zone DEFAULT now() NOT NULL );
ALTER TABLE public.password_asks ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY ( SEQUENCE NAME public.password_asks_id_seq START WITH 1 INCREMENT BY 1 NO MINVALUE NO MAXVALUE CACHE 1 );
CREATE TABLE public.password_links ( token_hash bytea NOT NULL, user_id uuid NOT NULL, email text NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, expires_at timestamp with time zone NOT NULL );
CREATE TABLE public.pending_sign_ins ( token_hash bytea NOT NULL, user_id uuid NOT NULL, wrong_codes integer DEFAULT 0 NOT NULL, expires_at timestamp with time zone NOT NULL );
CREATE TABLE public.plan_backups ( plan_id uuid NOT NULL, schedule text NOT NULL, hour smallint NOT NULL, weekday smallint NOT NULL, keep integer NOT NULL, since timestamp with time zone NOT NULL, CONSTRAINT plan_backups_hour_check CHECK (((hour >= 0) AND (hour <= 23))), CONSTRAINT plan_backups_keep_check CHECK (((keep >= 0) AND (keep <> 1))), CONSTRAINT plan_backups_schedule_check CHECK ((schedule = ANY (ARRAY['daily'::text, 'weekly'::text]))), CONSTRAINT plan_backups_weekday_check CHECK (((weekday >= 0) AND (weekday <= 6))) );
CREATE TABLE public.plan_traffic ( plan_id uuid NOT NULL, effective_from text NOT NULL COLLATE pg_catalog."C", allowance_gib integer, direction text NOT NULL, action text NOT NULL, throttle_mbps integer, CONSTRAINT plan_traffic_action_check CHECK ((action = ANY (ARRAY['report'::text, 'throttle'::text, 'suspend'::text]))), CONSTRAINT plan_traffic_allowance_gib_check CHECK ((allowance_gib > 0)), CONSTRAINT plan_traffic_check CHECK (((action <> 'throttle'::text) OR (throttle_mbps IS NOT NULL))), CONSTRAINT plan_traffic_direction_check CHECK ((direction = ANY (ARRAY['outbound'::text, 'both'::text]))), CONSTRAINT plan_traffic_effective_from_check CHECK ((effective_from ~ '^\d{4}-(0[1-9]|1[0-2])$'::text)), CONSTRAINT plan_traffic_throttle_mbps_check CHECK ((throttle_mbps > 0)) );
CREATE TABLE public.plans ( id uuid DEFAULT gen_random_uuid() NOT NULL, name text NOT NULL, slug text NOT NULL, vcpus integer NOT NULL, memory_mib integer NOT NULL, disk_gib integer NOT NULL, ipv4_count integer DEFAULT 1 NOT NULL, enabled boolean DEFAULT true NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT plans_disk_gib_check CHECK ((disk_gib > 0)), CONSTRAINT plans_ipv4_count_check CHECK ((ipv4_count >= 0)), CONSTRAINT plans_memory_mib_check CHECK ((memory_mib >= 64)), CONSTRAINT plans_vcpus_check CHECK ((vcpus > 0)) );
CREATE TABLE public.pools ( id uuid DEFAULT gen_random_uuid() NOT NULL, network_id uuid NOT NULL, location_id uuid NOT NULL, name text NOT NULL, family smallint NOT NULL, cidr cidr NOT NULL, range_start inet NOT NULL, range_end inet NOT NULL, gateway inet NOT NULL, gateway_mode text DEFAULT 'onlink'::text NOT NULL, guest_prefix_len smallint NOT NULL, topology text NOT NULL, nameservers inet[] DEFAULT '{}'::inet[] NOT NULL, node_ids uuid[] DEFAULT '{}'::uuid[] NOT NULL, enabled boolean DEFAULT true NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, vlan smallint, prefix_len smallint NOT NULL, first_slot bigint NOT NULL, last_slot bigint NOT NULL, next_slot bigint NOT NULL, CONSTRAINT pools_check CHECK ((family((cidr)::inet) = family)), CONSTRAINT pools_check1 CHECK (((range_start <<= (cidr)::inet) AND (range_end <<= (cidr)::inet) AND (range_start <= range_end))), CONSTRAINT pools_check2 CHECK (((0 <= first_slot) AND (first_slot <= last_slot))), CONSTRAINT pools_check3 CHECK (((family = 6) OR (prefix_len = 32))), CONSTRAINT pools_check4 CHECK ((((prefix_len - masklen((cidr)::inet)) >= 0) AND ((prefix_len - masklen((cidr)::inet)) <= 62))), CONSTRAINT pools_check5 CHECK (((vlan IS NULL) OR (topology = 'bridged'::text))), CONSTRAINT pools_check6 CHECK (((family = 4) OR (topology <> 'nat'::text))), CONSTRAINT pools_family_check CHECK ((family = ANY (ARRAY[4, 6]))), CONSTRAINT pools_gateway_mode_check CHECK ((gateway_mode = ANY (ARRAY['onlink'::text, 'subnet'::text]))), CONSTRAINT pools_topology_check CHECK ((topology = ANY (ARRAY['nat'::text, 'bridged'::text, 'routed'::text]))), CONSTRAINT pools_vlan_check CHECK (((vlan >= 1) AND (vlan <= 4094))) );
CREATE TABLE public.project_members ( project_id uuid NOT NULL, user_id uuid NOT NULL );
CREATE TABLE public.projects ( id uuid DEFAULT gen_random_uuid() NOT NULL, name text NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL );
CREATE TABLE public.recovery_codes ( user_id uuid NOT NULL, mark bytea NOT NULL );
CREATE SEQUENCE public.releases START WITH 1 INCREMENT BY 1 NO MINVALUE NO MAXVALUE CACHE 1;
CREATE TABLE public.reservations ( id uuid DEFAULT gen_random_uuid() NOT NULL, pool_id uuid NOT NULL, first_slot bigint NOT NULL, last_slot bigint NOT NULL, kind text NOT NULL, note text NOT NULL, arithmetic boolean DEFAULT false NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT reservations_check CHECK ((first_slot <= last_slot)) );
CREATE TABLE public.restorations ( id bigint NOT NULL, taken_at timestamp with time zone NOT NULL, release text NOT NULL, restored_at timestamp with time zone DEFAULT now() NOT NULL );
ALTER TABLE public.restorations ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY ( SEQUENCE NAME public.restorations_id_seq START WITH 1 INCREMENT BY 1 NO MINVALUE NO MAXVALUE CACHE 1 );
CREATE TABLE public.schema_migration ( component text NOT NULL, number integer NOT NULL, name text NOT NULL, checksum text NOT NULL, applied_at timestamp with time zone DEFAULT now() NOT NULL );
CREATE TABLE public.second_factors ( user_id uuid NOT NULL, sealed_secret bytea NOT NULL, confirmed_at timestamp with time zone, last_step bigint DEFAULT 0 NOT NULL );
CREATE TABLE public.security_group_machines ( vm_id uuid NOT NULL, group_id uuid NOT NULL );
CREATE TABLE public.security_group_rules ( id uuid DEFAULT gen_random_uuid() NOT NULL, group_id uuid NOT NULL, direction text NOT NULL, action text NOT NULL, protocol text NOT NULL, family smallint, port_from integer, port_to integer, cidr cidr, icmp_type smallint, note text DEFAULT ''::text NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT security_group_rules_action_check CHECK ((action = ANY (ARRAY['accept'::text, 'drop'::text]))), CONSTRAINT security_group_rules_check CHECK ((((port_from IS NULL) = (port_to IS NULL)) AND (port_from <= port_to))), CONSTRAINT security_group_rules_check1 CHECK (((port_from IS NULL) OR (protocol = ANY (ARRAY['tcp'::text, 'udp'::text])))), CONSTRAINT security_group_rules_check2 CHECK (((icmp_type IS NULL) OR ((protocol = 'icmp'::text) AND (family IS NOT NULL)))), CONSTRAINT security_group_rules_check3 CHECK (((cidr IS NULL) OR (family((cidr)::inet) = family))), CONSTRAINT security_group_rules_direction_check CHECK ((direction = ANY (ARRAY['ingress'::text, 'egress'::text]))), CONSTRAINT security_group_rules_family_check CHECK ((family = ANY (ARRAY[4, 6]))), CONSTRAINT security_group_rules_icmp_type_check CHECK (((icmp_type >= 0) AND (icmp_type <= 255))), CONSTRAINT security_group_rules_port_from_check CHECK (((port_from >= 0) AND (port_from <= 65535))), CONSTRAINT security_group_rules_port_to_check CHECK (((port_to >= 0) AND (port_to <= 65535))), CONSTRAINT security_group_rules_protocol_check CHECK ((protocol = ANY (ARRAY['any'::text, 'tcp'::text, 'udp'::text, 'icmp'::text]))) );
CREATE TABLE public.security_groups ( id uuid DEFAULT gen_random_uuid() NOT NULL, project_id uuid, name text NOT NULL, description text DEFAULT ''::text NOT NULL, default_ingress text DEFAULT 'drop'::text NOT NULL, default_egress text DEFAULT 'accept'::text NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT security_groups_default_egress_check CHECK ((default_egress = ANY (ARRAY['accept'::text, 'drop'::text]))), CONSTRAINT security_groups_default_ingress_check CHECK ((default_ingress = ANY (ARRAY['accept'::text, 'drop'::text]))) );
CREATE TABLE public.service_events ( id bigint NOT NULL, service_id uuid NOT NULL, at timestamp with time zone DEFAULT clock_timestamp() NOT NULL, kind text NOT NULL, state text NOT NULL, actor text NOT NULL, message text NOT NULL );
ALTER TABLE public.service_events ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY ( SEQUENCE NAME public.service_events_id_seq START WITH 1 INCREMENT BY 1 NO MINVALUE NO MAXVALUE CACHE 1 );
CREATE TABLE public.service_sign_in_links ( token_hash bytea NOT NULL, service_id uuid NOT NULL, made_by text NOT NULL, expires_at timestamp with time zone NOT NULL );
CREATE TABLE public.services ( id uuid DEFAULT gen_random_uuid() NOT NULL, integration text NOT NULL, external_ref text NOT NULL, state text NOT NULL, state_reason text, settled boolean DEFAULT false NOT NULL, tried_at timestamp with time zone, customer_id uuid, project_id uuid NOT NULL, vm_id uuid, machine_order jsonb NOT NULL, ordered_by text, suspend_mode text, suspended_at timestamp with time zone, resume boolean DEFAULT false NOT NULL, destroy_disks boolean DEFAULT false NOT NULL, terminated_at timestamp with time zone, created_at timestamp with time zone DEFAULT now() NOT NULL, changed_at timestamp with time zone DEFAULT now() NOT NULL, CONSTRAINT services_check CHECK (((state = 'suspended'::text) = (suspend_mode IS NOT NULL))), CONSTRAINT services_check1 CHECK (((state = 'suspended'::text) = (suspended_at IS NOT NULL))), CONSTRAINT services_check2 CHECK (((state = 'terminated'::text) = (terminated_at IS NOT NULL))), CONSTRAINT services_state_check CHECK ((state = ANY (ARRAY['provisioning'::text, 'active'::text, 'provisioning_failed'::text, 'suspended'::text, 'terminated'::text]))), CONSTRAINT services_suspend_mode_check CHECK ((suspend_mode = ANY (ARRAY['power_off'::text, 'network_isolate'::text]))) );
CREATE TABLE public.sessions ( id uuid DEFAULT gen_random_uuid() NOT NULL, token_hash bytea NOT NULL, user_id uuid NOT NULL, impersonation_id uuid, address text, user_agent text, created_at timestamp with time zone DEFAULT now() NOT NULL, seen_at timestamp with time zone DEFAULT now() NOT NULL, expires_at timestamp with time zone NOT NULL );
CREATE TABLE public.settings ( name text NOT NULL, value jsonb NOT NULL, updated_at timestamp with time zone DEFAULT now() NOT NULL );
CREATE TABLE public.setup_tokens ( token_hash bytea NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL, used_at timestamp with time zone );
CREATE TABLE public.sign_in_attempts ( subject text NOT NULL, failures integer NOT NULL, blocked_until timestamp with time zone NOT NULL, forget_at timestamp with time zone NOT NULL );
CREATE TABLE public.ssh_keys ( id uuid DEFAULT gen_random_uuid() NOT NULL, user_id uuid NOT NULL, name text NOT NULL, public_key text NOT NULL, fingerprint text NOT NULL, created_at timestamp with time zone DEFAULT now() NOT NULL );
CREATE TABLE public.staged_machines ( integration text NOT NULL, external_ref text NOT NULL, legacy_server_id text NOT NULL, vm_id uuid, staged_at timestamp with time zone DEFAULT now() NOT NULL );
CREATE TABLE public.task_events ( task_id uuid NOT NULL, "position" bigint NOT NULL, at timestamp with time zone DEFAULT now() NOT NULL, level text DEFAULT 'info'::text NOT NULL, progress smallint, message text NOT NULL, CONSTRAINT task_events_level_check CHECK ((level = ANY (ARRAY['info'::text, 'warning'::text, 'error'::text]))) );
CREATE VIEW public.task_numbers AS SELECT 'tasks'::text AS list, NULL::uuid AS scope, ARRAY[tasks.status, tasks.op, tasks.resource_kind] AS words, count(*) AS number FROM public.tasks WHERE (tasks.ended_at IS NOT NULL) GROUP BY tasks.status, tasks.op, tasks.resource_kind UNION ALL SELECT 'tasks by project'::text AS list, tasks.project_id AS scope, '{}'::text[] AS words, count(*) AS number FROM public.tasks WHERE (tasks.ended_at IS NOT NULL) GROUP BY tasks.project_id;
CREATE TABLE public.traffic_decisions ( id bigint NOT NULL, vm_id uuid NOT NULL, period text NOT NULL COLLATE pg_catalog."C", action text NOT NULL, throttle_mbps integer, at timestamp with time zone NOT NULL, counted_bytes bigint NOT NULL, allowance_bytes bigint, reason text NOT NULL, standing boolean NOT NULL, CONSTRAINT traffic_decisions_action_check CHECK ((action = ANY (ARRAY['report'::text, 'throttle'::text, 'suspend'::text, 'lift'::text]))), CONSTRAINT traffic_decisions_check CHECK (((action = 'throttle'::text) = (throttle_mbps IS NOT NULL))), CONSTRAINT traffic_decisions_check1 CHECK ((NOT (standing AND (action = 'lift'::text)))), CONSTRAINT traffic_decisions_throttle_mbps_check CHECK ((throttle_mbps > 0)) );
ALTER TABLE public.traffic_decisions ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY ( SEQUENCE NAME public.traffic_decisions_id_seq START WITH 1 INCREMENT BY 1 NO MINVALUE NO MAXVALUE CACHE 1 );
CREATE TABLE public.traffic_months ( period text NOT NULL COLLATE pg_catalog."C", vm_id uuid NOT NULL, received bigint NOT NULL, sent bigint NOT NULL, ledgers bigint NOT NULL, resets bigint NOT NULL, samples bigint NOT NULL, first_at timestamp with time zone NOT NULL );
CREATE TABLE public.traffic_readings ( vm_id uuid NOT NULL, period text NOT NULL COLLATE pg_catalog."C", node_id uuid NOT NULL, ledger_id uuid NOT NULL, received bigint NOT NULL, sent bigint NOT NULL, resets bigint NOT NULL, samples bigint NOT NULL, first_at timestamp with time zone NOT NULL, last_at timestamp with time zone NOT NULL, CONSTRAINT traffic_readings_period_check CHECK ((period ~ '^\d{4}-(0[1-9]|1[0-2])$'::text)), CONSTRAINT traffic_readings_received_check CHECK ((received >= 0)), CONSTRAINT traffic_readings_resets_check CHECK ((resets >= 0)), CONSTRAINT traffic_readings_samples_check CHECK ((samples >= 0)), CONSTRAINT traffic_readings_sent_check CHECK ((sent >= 0)) );
CREATE TABLE public.users ( id uuid DEFAULT gen_random_uuid() NOT NULL, email text NOT NULL, name text NOT NULL, role text NOT NULL, password_hash text, phone text DEFAULT ''::text NOT NULL, company text DEFAULT ''::text NOT NULL, note text DEFAULT ''::text NOT NULL, suspended_at timestamp with time zone, suspension_reason text, created_at timestamp with time zone DEFAULT now() NOT NULL, last_sign_in_at timestamp with time zone, alert_mail text DEFAULT 'critical'::text NOT NULL, CONSTRAINT users_alert_mail_check CHECK ((alert_mail = ANY (ARRAY['none'::text, 'critical'::text, 'warning'::text]))), CONSTRAINT users_check CHECK (((suspended_at IS NULL) = (suspension_reason IS NULL))), CONSTRAINT users_email_check CHECK ((email = lower(email))), CONSTRAINT users_role_check CHECK ((role = ANY (ARRAY['administrator'::text, 'staff'::text, 'customer'::text]))) );
CREATE VIEW public.vm_numbers AS SELECT 'vms by node'::text AS list, vms.node_id AS scope, ARRAY[vms.status] AS words, count(*) AS number FROM public.vms WHERE (vms.deleted_at IS NULL) GROUP BY vms.node_id, vms.status UNION ALL SELECT 'vms by project'::text AS list, vms.project_id AS scope, ARRAY[vms.status] AS words, count(*) AS number FROM public.vms WHERE (vms.deleted_at IS NULL) GROUP BY vms.project_id, vms.status;
CREATE TABLE public.vm_texts ( vm_id uuid NOT NULL, name text NOT NULL, hostname text NOT NULL );
CREATE TABLE public.windows_setups ( vm_id uuid NOT NULL, ordered_at timestamp with time zone DEFAULT now() NOT NULL, password_ordered boolean NOT NULL, booted_at timestamp with time zone, password_set_at timestamp with time zone, password_error text, credential_taken_at timestamp with time zone, CONSTRAINT windows_setups_check CHECK (((booted_at IS NOT NULL) OR ((password_set_at IS NULL) AND (password_error IS NULL) AND (credential_taken_at IS NULL)))), CONSTRAINT windows_setups_check1 CHECK (((password_set_at IS NULL) OR (password_error IS NULL))) );
INSERT INTO public.allocations VALUES ('758164f8-ca3e-443e-9605-6df3a4c5b219', '192.0.2.10', 'allocated', '09d5cd0e-a951-4f57-b3f9-a40dc595e480', 'a599a8d4-d62c-416f-8126-fec1e899a190', true, NULL, '2026-11-29 22:23:10.847039+00', 10, NULL, NULL, false);
INSERT INTO public.audit OVERRIDING SYSTEM VALUE VALUES (1, '2026-11-29 22:23:10.847039+00', NULL, 'ada@example.test', 'customer', 'api', NULL, NULL, NULL, NULL, 'r1', 'vm.create', 'vm', NULL, NULL, NULL, 'ok', NULL, NULL);
INSERT INTO public.images VALUES ('7651e97b-36f4-4d75-be52-adccc1a98fad', 'debian-12', 'Debian 12', 'linux', 'debian', '12', 'debian', 'qcow2', 'file', NULL, NULL, 'sha256', NULL, NULL, 1, 64, false, true, NULL, '2026-11-29 22:23:10.847039+00');
INSERT INTO public.list_changes VALUES ('vms by node', '1541d174-0932-4cab-871f-a55758d61861', '{running}', 1);
INSERT INTO public.list_changes VALUES ('vms by project', '1c89cbbc-1f87-4a39-81bb-9e7b88c07e9c', '{running}', 1);
INSERT INTO public.list_changes VALUES ('vms by day', NULL, '{9829}', 1);
INSERT INTO public.list_changes VALUES ('addresses by pool', '758164f8-ca3e-443e-9605-6df3a4c5b219', '{allocated}', 1);
INSERT INTO public.list_changes VALUES ('tasks', NULL, '{succeeded,vm.create,vm}', 1);
INSERT INTO public.list_changes VALUES ('tasks by project', '1c89cbbc-1f87-4a39-81bb-9e7b88c07e9c', '{}', 1);
INSERT INTO public.list_changes VALUES ('tasks by day', NULL, '{9829}', 1);
INSERT INTO public.list_changes VALUES ('audit', NULL, '{0}', 1);
INSERT INTO public.locations VALUES ('b65ff973-6ad1-40bf-bfef-0ff616928d5b', 'here', '2026-11-29 22:23:10.847039+00');
INSERT INTO public.networks VALUES ('e426e943-c013-4f38-9095-c68598feb6f8', 'public', true, 1500, '2026-11-29 22:23:10.847039+00');
INSERT INTO public.nics VALUES ('a599a8d4-d62c-416f-8126-fec1e899a190', '09d5cd0e-a951-4f57-b3f9-a40dc595e480', 'e426e943-c013-4f38-9095-c68598feb6f8', 0, '52:54:00:00:00:01');
INSERT INTO public.node_capacity VALUES ('1541d174-0932-4cab-871f-a55758d61861', 'alpha', 'b65ff973-6ad1-40bf-bfef-0ff616928d5b', true, 32, 16384, 500, '{}', 1, 1024, 10, DEFAULT);
INSERT INTO public.nodes VALUES ('1541d174-0932-4cab-871f-a55758d61861', 'alpha', 'b65ff973-6ad1-40bf-bfef-0ff616928d5b', 'online', 'managed', false, 4, 1, 1, '7efc551c-7695-44b1-8abe-d3c8ce66d49d', NULL, NULL, '{"cpus": 8, "disk_gib": 500, "memory_mib": 16384}', NULL, NULL, NULL, NULL, NULL, '2026-11-29 22:23:10.847039+00', NULL, NULL, NULL, 'ok', NULL, NULL, NULL, NULL, false, NULL);
INSERT INTO public.plans VALUES ('7a2ef5ad-d658-426a-a048-3b8242f6b6fc', 'Small', 'small', 1, 1024, 10, 1, true, '2026-11-29 22:23:10.847039+00');
INSERT INTO public.pools VALUES ('758164f8-ca3e-443e-9605-6df3a4c5b219', 'e426e943-c013-4f38-9095-c68598feb6f8', 'b65ff973-6ad1-40bf-bfef-0ff616928d5b', 'public', 4, '192.0.2.0/24', '192.0.2.2', '192.0.2.254', '192.0.2.1', 'onlink', 24, 'bridged', '{}', '{}', true, '2026-11-29 22:23:10.847039+00', NULL, 32, 2, 254, 11);
INSERT INTO public.project_members VALUES ('1c89cbbc-1f87-4a39-81bb-9e7b88c07e9c', 'a83d08cf-d2f2-40e2-b40c-c49f404bf5b0');
INSERT INTO public.projects VALUES ('1c89cbbc-1f87-4a39-81bb-9e7b88c07e9c', 'shop', '2026-11-29 22:23:10.847039+00');
INSERT INTO public.schema_migration VALUES ('shared', 1, 'foundation', 'a615b58440facdb133d3a23016084af1fea6a820089d89cd0d54c0a9a7fd1136', '2026-11-29 22:23:08.113135+00');
INSERT INTO public.schema_migration VALUES ('shared', 2, 'people', 'ea00754aa2f8e2c07e03b9beccefd080748cef398aa7c33136ab4b58ab793a15', '2026-11-29 22:23:08.206119+00');
INSERT INTO public.schema_migration VALUES ('shared', 3, 'alerts', '9c03bef85029b3801de388ead49c8571c29213f53295dec1eacd3829d72d60a0', '2026-11-29 22:23:08.361683+00');
INSERT INTO public.schema_migration VALUES ('shared', 4, 'token_parents', 'fbecab61572abc015c39021de41ce8e0c0eee9a6bb93133a1f0f47710b6b7655', '2026-11-29 22:23:08.377957+00');
INSERT INTO public.schema_migration VALUES ('shared', 5, 'familiar_sign_ins', '8e206bcfec30c530f86da6c52fee45ce6513f82f1cdc47c7db8edf23fdfe1a88', '2026-11-29 22:23:08.3949+00');
INSERT INTO public.schema_migration VALUES ('shared', 6, 'audit_retention', 'b6def942af56a8a5bd676a4fca12c57722a8da5ca6833df929864c36b06c88a9', '2026-11-29 22:23:08.406094+00');
INSERT INTO public.schema_migration VALUES ('shared', 7, 'alerts_told', '98bcf235943e25319c8b15c0870c844840eb9910ef6eacf2d9a39c26ad66c184', '2026-11-29 22:23:08.434896+00');
INSERT INTO public.schema_migration VALUES ('shared', 8, 'lists', 'bb05feae4d60ad0067f4884cda9114ec6818ca539f031cf9e155747a0046bd1f', '2026-11-29 22:23:08.440508+00');
INSERT INTO public.schema_migration VALUES ('shared', 9, 'audit_blocks', '44894d54956cd6c7153bf0d4a9bc1424a5cc77bee83340ea293ac71663aa6878', '2026-11-29 22:23:08.49812+00');
INSERT INTO public.schema_migration VALUES ('shared', 10, 'text_functions', 'd73884917e84a646bd9f6248a9f9cba00ef2d087fc7a286c5eeb969c91f0ded3', '2026-11-29 22:23:08.518477+00');
INSERT INTO public.schema_migration VALUES ('shared', 11, 'alerts_about', '9e2d68a712e35d6e63b6e07bd6add53302d0aaef89d478a0834c363c31fd0b00', '2026-11-29 22:23:08.524808+00');
INSERT INTO public.schema_migration VALUES ('shared', 12, 'mail', '0c0d6a6c7d62b399c005dc70ad0e26b21adcc5f3299425dd6ff750ef58f44a26', '2026-11-29 22:23:08.55877+00');
INSERT INTO public.schema_migration VALUES ('shared', 13, 'password_links', '1dbc918c320b05cdaa6c4393d987c3ebed795e8b5c0359caad3cafdf236c9205', '2026-11-29 22:23:08.590083+00');
INSERT INTO public.schema_migration VALUES ('shared', 14, 'acme', '7be83cb057993ea11a387ed2a48234c425186b0a2ec2c615092f1521dc7f3c38', '2026-11-29 22:23:08.6179+00');
INSERT INTO public.schema_migration VALUES ('shared', 15, 'alert_mail', '22c2a02e826cfdb3b98ce993659f7ab75203115149beb91bc3a38551889891a3', '2026-11-29 22:23:08.658562+00');
INSERT INTO public.schema_migration VALUES ('shared', 16, 'full_tokens', '843b35a76633b4f245309fb46d81df1683068a70697013899f15fd911d992c54', '2026-11-29 22:23:08.691573+00');
INSERT INTO public.schema_migration VALUES ('shared', 17, 'second_factors', '4b87da0a9d2ee4f6db68a441e8dd6bfb0147110fc3bc72d3b7fb994ad715ef8f', '2026-11-29 22:23:08.713428+00');
INSERT INTO public.schema_migration VALUES ('shared', 18, 'acme_challenges', '2f01b8359193f270e70b16502df1279e21bbf31745ccb300beb1d238849dee93', '2026-11-29 22:23:08.773661+00');
INSERT INTO public.schema_migration VALUES ('controller', 1, 'projects', '92a5b3739f8ea45456ce4e91259ae9866e72b0c36cb678ad84bd841d17e5e5c6', '2026-11-29 22:23:08.80296+00');
INSERT INTO public.schema_migration VALUES ('controller', 2, 'nodes', 'ce5443a436a0db76a34b9e53c1b3526c105ff376788e4497438e3a34928d86e1', '2026-11-29 22:23:08.855349+00');
INSERT INTO public.schema_migration VALUES ('controller', 3, 'machines', '8bdc65f66e0899c93c09a9abb7ec6d3a26ccb74809dd58ce65012203ab8b9147', '2026-11-29 22:23:09.307045+00');
INSERT INTO public.schema_migration VALUES ('controller', 4, 'consoles', 'e006ad5af41536e36b56a82c67fce25a16f0c3ebf2978c2677d11016541d1cd0', '2026-11-29 22:23:09.542168+00');
INSERT INTO public.schema_migration VALUES ('controller', 5, 'machine_networks', '797244c05191a6341e3c1aa450b6d95427794a0b8d82c19697ef2bb395f281eb', '2026-11-29 22:23:09.575221+00');
INSERT INTO public.schema_migration VALUES ('controller', 6, 'addresses', '0afe0f4066107253b196a71c63d76ec8332dbac8bbd717147b1dbe834c1e702e', '2026-11-29 22:23:09.614523+00');
INSERT INTO public.schema_migration VALUES ('controller', 7, 'security_groups', '63bf8be73be5a2bf2c934f5f1cf85475551c1f5db8bf3fe7b4588d650ecd505c', '2026-11-29 22:23:09.708188+00');
INSERT INTO public.schema_migration VALUES ('controller', 8, 'traffic', '7e2c715e3657c14238a0cca79cafd9899ef32be1e63111a203e72ec625b001ec', '2026-11-29 22:23:09.794112+00');
INSERT INTO public.schema_migration VALUES ('controller', 9, 'network_watch', 'a7c9a4f0aec1ff64c25238b0464ba0344640fe345d862983302d00fc86a3102e', '2026-11-29 22:23:09.890126+00');
INSERT INTO public.schema_migration VALUES ('controller', 10, 'network_indexes', '025fa1584610dae0ca5d396981771716705d4c7f2eed684a3cf7145b8c0bd555', '2026-11-29 22:23:09.909427+00');
INSERT INTO public.schema_migration VALUES ('controller', 11, 'node_capacity', 'f91af76d3da37befda54f2a42617743abe653cdc671aacbd9187afc42347c6d1', '2026-11-29 22:23:09.934129+00');
INSERT INTO public.schema_migration VALUES ('controller', 12, 'names', '4c23c23e2b2e8ab67feb3fdc63a296ec0632901bd3c10309210369a14fc3c17a', '2026-11-29 22:23:09.970099+00');
INSERT INTO public.schema_migration VALUES ('controller', 13, 'machines_in_bulk', '9e57cff946515f6008836ceb0095a4f25e7fbc540470ca7291029d65204fe7c6', '2026-11-29 22:23:10.006106+00');
INSERT INTO public.schema_migration VALUES ('controller', 14, 'retention', '88f20509275b04252a6a379902a04e2b01d947d2b57df5aa2d1e07af861b6083', '2026-11-29 22:23:10.036893+00');
INSERT INTO public.schema_migration VALUES ('controller', 15, 'lists', '45faba43796db6ad2c389dc4be2085be39f57d57b62f6f7d4311d74b3ec64a9f', '2026-11-29 22:23:10.065218+00');
INSERT INTO public.schema_migration VALUES ('controller', 16, 'deep_pages', '3c8bf735f875aefc3978da1ba7fbc84e400e06c33ec85d74da90243e3a378ea2', '2026-11-29 22:23:10.206851+00');
INSERT INTO public.schema_migration VALUES ('controller', 17, 'power', 'b730162fad58b6061af44b45a50389365ef0ba3636f926354173506b24fe1dc1', '2026-11-29 22:23:10.243117+00');
INSERT INTO public.schema_migration VALUES ('controller', 18, 'node_disks', '50c74656acbe071f7ca34c23826f5624cd5941fab0cce889b01a54d3c80da950', '2026-11-29 22:23:10.270127+00');
INSERT INTO public.schema_migration VALUES ('controller', 19, 'node_agents', '5d91db86d6d28b7fa1d9f65d0a19aa79a2fa5d4ed2e65b89c5598b348797f581', '2026-11-29 22:23:10.295593+00');
INSERT INTO public.schema_migration VALUES ('controller', 20, 'controller_backups', '17331d1723b269860cd37f8e1f5a1435a2565a732c987eb521a28455064b98b6', '2026-11-29 22:23:10.310218+00');
INSERT INTO public.schema_migration VALUES ('controller', 21, 'cheaper_writes', '88215de28e984c8757d0214536c5f83e49ced391bf7f6153cb3066d53d31eae5', '2026-11-29 22:23:10.330417+00');
INSERT INTO public.schema_migration VALUES ('controller', 22, 'node_upgrades', '1a20e0bf28710632d0692f407a46a1bfbf5f1f56e2c01d0c43db9757882908ae', '2026-11-29 22:23:10.350692+00');
INSERT INTO public.schema_migration VALUES ('controller', 23, 'restorations', '693c6d1ab61e7946875f29acae1097c1d7ed55cb9bac4fd56c673cc78cdc0a29', '2026-11-29 22:23:10.362178+00');
INSERT INTO public.schema_migration VALUES ('controller', 24, 'task_origins', '060dc0ed9a0bb60a6ee1cdb30c75e5bb25c115522c039b40411c0fc91cce4c10', '2026-11-29 22:23:10.416284+00');
INSERT INTO public.schema_migration VALUES ('controller', 25, 'services', '59b383e92359bc7870614967f2c7f27811f9d18dba0411955084701be9993e17', '2026-11-29 22:23:10.42655+00');
INSERT INTO public.schema_migration VALUES ('controller', 26, 'adoption', '90dae3608b5deae9a901abf74c63c4c4182ec60a7833e2b2255e71967c7bad02', '2026-11-29 22:23:10.518736+00');
INSERT INTO public.schema_migration VALUES ('controller', 27, 'lost_nodes', '6b29b6f9d8a0c1e440d780b64ad41ca073a207e9b4a8e490f8aa956db89209f2', '2026-11-29 22:23:10.539245+00');
INSERT INTO public.schema_migration VALUES ('controller', 28, 'labels', 'e30fadfe8164f672bdb2e999c46fd88c5897cc5d300daf503e73ac810f4c1cdb', '2026-11-29 22:23:10.554866+00');
INSERT INTO public.schema_migration VALUES ('controller', 29, 'machine_backups', 'df982f22b8e6f4f37319036f154eb27c6590a1adac67be56dccff5ea07c16070', '2026-11-29 22:23:10.58253+00');
INSERT INTO public.schema_migration VALUES ('controller', 30, 'processors', 'cd331023f80a47ffea3057a0b8252e1da5f016fd3b7c4ba9f7f7595fc9ca0ce0', '2026-11-29 22:23:10.64422+00');
INSERT INTO public.schema_migration VALUES ('controller', 31, 'machines_by_plan', 'decde1cfa67c7284e978ba27a3d3abe114b090a2834b428e937b5cf9b8434593', '2026-11-29 22:23:10.670115+00');
INSERT INTO public.schema_migration VALUES ('controller', 32, 'backups_due', '0e7ea3afa2b8432e8b2266702c33a7c071516bc677c45325ae773899d9fd7c3d', '2026-11-29 22:23:10.687805+00');
INSERT INTO public.schema_migration VALUES ('controller', 33, 'copies_of_deleted_machines', '0c0a17746b2bd42eb65ca885b41ec1d020f85a743ffd88d3d76d2f16d16ee70d', '2026-11-29 22:23:10.719011+00');
INSERT INTO public.schema_migration VALUES ('controller', 34, 'moves', 'de8f05f684ebfeb4216a72de1002adc22742b879bdef5f322871fbd63a00ce99', '2026-11-29 22:23:10.74269+00');
INSERT INTO public.schema_migration VALUES ('controller', 35, 'superseded_copies', 'ad268468d42789d8ad1c9996062de08467db2d6e4572380c710bc1427732b954', '2026-11-29 22:23:10.778524+00');
INSERT INTO public.schema_migration VALUES ('controller', 36, 'windows_setups', 'acfa740b9c31eaa805e9d9c5a7cbb3427bf386ec78101a29b11dd5325a632466', '2026-11-29 22:23:10.790125+00');
INSERT INTO public.schema_migration VALUES ('controller', 37, 'backup_stores', 'e95a63d44af4156508d173feaeba3a4a48f8dbe6d9341c03617c46025542c6b9', '2026-11-29 22:23:10.816301+00');
INSERT INTO public.tasks VALUES ('3bc6f83d-8569-4482-ae43-4c805f4d83d1', 'vm.create', 'succeeded', 'vm', '09d5cd0e-a951-4f57-b3f9-a40dc595e480', 'web-1', '1541d174-0932-4cab-871f-a55758d61861', '1c89cbbc-1f87-4a39-81bb-9e7b88c07e9c', '{}', '{}', 0, '', NULL, NULL, false, 0, '2026-11-29 22:23:10.847039+00', NULL, '2026-11-29 22:23:10.847039+00', '2026-11-29 22:23:10.847039+00', NULL, NULL);
INSERT INTO public.users VALUES ('9ca70843-df70-41c6-9a3e-c5009c1c883a', 'root@example.test', 'Root', 'administrator', NULL, '', '', '', NULL, NULL, '2026-11-29 22:23:10.847039+00', NULL, 'critical');
INSERT INTO public.users VALUES ('a83d08cf-d2f2-40e2-b40c-c49f404bf5b0', 'ada@example.test', 'Ada', 'customer', NULL, '', '', '', NULL, NULL, '2026-11-29 22:23:10.847039+00', NULL, 'critical');
INSERT INTO public.vm_texts VALUES ('09d5cd0e-a951-4f57-b3f9-a40dc595e480', 'web-1', 'web-1');
INSERT INTO public.vms VALUES ('09d5cd0e-a951-4f57-b3f9-a40dc595e480', 'web-1', 'web-1', '1c89cbbc-1f87-4a39-81bb-9e7b88c07e9c', '1541d174-0932-4cab-871f-a55758d61861', '7a2ef5ad-d658-426a-a048-3b8242f6b6fc', '7651e97b-36f4-4d75-be52-adccc1a98fad', 1, 1024, 10, 'running', NULL, NULL, NULL, 'user_sudo', '{}', NULL, '2026-11-29 22:23:10.847039+00', NULL, NULL, NULL, 'a83d08cf-d2f2-40e2-b40c-c49f404bf5b0', '2026-11-29 22:23:10.847039+00', NULL, 1, 0, NULL, NULL, NULL, false, 'running', 'on_failure', 0, NULL, NULL, NULL, false, '{}', false, 'default', NULL, '-infinity', NULL, NULL, NULL);
SELECT pg_catalog.setval('public.audit_id_seq', 1, true);
SELECT pg_catalog.setval('public.controller_backups_id_seq', 1, false);
SELECT pg_catalog.setval('public.event_inbox_id_seq', 1, false);
SELECT pg_catalog.setval('public.password_asks_id_seq', 1, false);
SELECT pg_catalog.setval('public.releases', 1, false);
SELECT pg_catalog.setval('public.restorations_id_seq', 1, false);
SELECT pg_catalog.setval('public.service_events_id_seq', 1, false);
SELECT pg_catalog.setval('public.traffic_decisions_id_seq', 1, false);
ALTER TABLE ONLY public.acme_accounts ADD CONSTRAINT acme_accounts_pkey PRIMARY KEY (directory);
ALTER TABLE ONLY public.acme_certificates ADD CONSTRAINT acme_certificates_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.alerts_mailed ADD CONSTRAINT alerts_mailed_pkey PRIMARY KEY (user_id, alert_id);
ALTER TABLE ONLY public.alerts ADD CONSTRAINT alerts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.allocations ADD CONSTRAINT allocations_pkey PRIMARY KEY (pool_id, ip);
ALTER TABLE ONLY public.allocations ADD CONSTRAINT allocations_pool_id_slot_state_key UNIQUE (pool_id, slot) INCLUDE (state);
ALTER TABLE ONLY public.api_tokens ADD CONSTRAINT api_tokens_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.api_tokens ADD CONSTRAINT api_tokens_token_hash_key UNIQUE (token_hash);
ALTER TABLE ONLY public.audit_exports ADD CONSTRAINT audit_exports_pkey PRIMARY KEY (first_id);
ALTER TABLE ONLY public.audit ADD CONSTRAINT audit_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.authority ADD CONSTRAINT authority_pkey PRIMARY KEY (singleton);
ALTER TABLE ONLY public.carried_addresses ADD CONSTRAINT carried_addresses_pkey PRIMARY KEY (node_id, vm_id, ip);
ALTER TABLE ONLY public.console_tickets ADD CONSTRAINT console_tickets_pkey PRIMARY KEY (ticket_hash);
ALTER TABLE ONLY public.controller_backups ADD CONSTRAINT controller_backups_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.event_inbox ADD CONSTRAINT event_inbox_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.event ADD CONSTRAINT event_pkey PRIMARY KEY ("position");
ALTER TABLE ONLY public.familiar_sign_ins ADD CONSTRAINT familiar_sign_ins_pkey PRIMARY KEY (account, mark);
ALTER TABLE ONLY public.idempotency_keys ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (owner, key);
ALTER TABLE ONLY public.images ADD CONSTRAINT images_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.images ADD CONSTRAINT images_slug_key UNIQUE (slug);
ALTER TABLE ONLY public.impersonations ADD CONSTRAINT impersonations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.list_counts ADD CONSTRAINT list_counts_once UNIQUE NULLS NOT DISTINCT (list, scope, words);
ALTER TABLE ONLY public.locations ADD CONSTRAINT locations_name_key UNIQUE (name);
ALTER TABLE ONLY public.locations ADD CONSTRAINT locations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.machine_backup_stores ADD CONSTRAINT machine_backup_stores_pkey PRIMARY KEY (vm_id, node_id);
ALTER TABLE ONLY public.machine_backups ADD CONSTRAINT machine_backups_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.mails ADD CONSTRAINT mails_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.networks ADD CONSTRAINT networks_name_key UNIQUE (name);
ALTER TABLE ONLY public.networks ADD CONSTRAINT networks_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.nics ADD CONSTRAINT nics_mac_key UNIQUE (mac);
ALTER TABLE ONLY public.nics ADD CONSTRAINT nics_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.nics ADD CONSTRAINT nics_vm_id_position_key UNIQUE (vm_id, "position");
ALTER TABLE ONLY public.node_bootstraps ADD CONSTRAINT node_bootstraps_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.node_bootstraps ADD CONSTRAINT node_bootstraps_token_hash_key UNIQUE (token_hash);
ALTER TABLE ONLY public.node_capacity ADD CONSTRAINT node_capacity_pkey PRIMARY KEY (node_id);
ALTER TABLE ONLY public.node_certificates ADD CONSTRAINT node_certificates_pkey PRIMARY KEY (serial);
ALTER TABLE ONLY public.node_images ADD CONSTRAINT node_images_pkey PRIMARY KEY (node_id, image_id);
ALTER TABLE ONLY public.node_samples ADD CONSTRAINT node_samples_pkey PRIMARY KEY (node_id, hour);
ALTER TABLE ONLY public.nodes ADD CONSTRAINT nodes_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.observed_domains ADD CONSTRAINT observed_domains_pkey PRIMARY KEY (node_id, uuid);
ALTER TABLE ONLY public.password_asks ADD CONSTRAINT password_asks_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.password_links ADD CONSTRAINT password_links_pkey PRIMARY KEY (token_hash);
ALTER TABLE ONLY public.pending_sign_ins ADD CONSTRAINT pending_sign_ins_pkey PRIMARY KEY (token_hash);
ALTER TABLE ONLY public.plan_backups ADD CONSTRAINT plan_backups_pkey PRIMARY KEY (plan_id);
ALTER TABLE ONLY public.plan_traffic ADD CONSTRAINT plan_traffic_pkey PRIMARY KEY (plan_id, effective_from);
ALTER TABLE ONLY public.plans ADD CONSTRAINT plans_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.plans ADD CONSTRAINT plans_slug_key UNIQUE (slug);
ALTER TABLE ONLY public.pools ADD CONSTRAINT pools_cidr_excl EXCLUDE USING gist (cidr inet_ops WITH &&);
ALTER TABLE ONLY public.pools ADD CONSTRAINT pools_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.project_members ADD CONSTRAINT project_members_pkey PRIMARY KEY (project_id, user_id);
ALTER TABLE ONLY public.projects ADD CONSTRAINT projects_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.recovery_codes ADD CONSTRAINT recovery_codes_pkey PRIMARY KEY (user_id, mark);
ALTER TABLE ONLY public.reservations ADD CONSTRAINT reservations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.restorations ADD CONSTRAINT restorations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.schema_migration ADD CONSTRAINT schema_migration_pkey PRIMARY KEY (component, number);
ALTER TABLE ONLY public.second_factors ADD CONSTRAINT second_factors_pkey PRIMARY KEY (user_id);
ALTER TABLE ONLY public.security_group_machines ADD CONSTRAINT security_group_machines_pkey PRIMARY KEY (vm_id, group_id);
ALTER TABLE ONLY public.security_group_rules ADD CONSTRAINT security_group_rules_once UNIQUE NULLS NOT DISTINCT (group_id, direction, action, protocol, family, port_from, port_to, cidr, icmp_type);
ALTER TABLE ONLY public.security_group_rules ADD CONSTRAINT security_group_rules_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.security_groups ADD CONSTRAINT security_groups_name UNIQUE NULLS NOT DISTINCT (project_id, name);
ALTER TABLE ONLY public.security_groups ADD CONSTRAINT security_groups_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.service_events ADD CONSTRAINT service_events_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.service_sign_in_links ADD CONSTRAINT service_sign_in_links_pkey PRIMARY KEY (token_hash);
ALTER TABLE ONLY public.services ADD CONSTRAINT services_integration_external_ref_key UNIQUE (integration, external_ref);
ALTER TABLE ONLY public.services ADD CONSTRAINT services_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.sessions ADD CONSTRAINT sessions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.sessions ADD CONSTRAINT sessions_token_hash_key UNIQUE (token_hash);
ALTER TABLE ONLY public.settings ADD CONSTRAINT settings_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.setup_tokens ADD CONSTRAINT setup_tokens_pkey PRIMARY KEY (token_hash);
ALTER TABLE ONLY public.sign_in_attempts ADD CONSTRAINT sign_in_attempts_pkey PRIMARY KEY (subject);
ALTER TABLE ONLY public.ssh_keys ADD CONSTRAINT ssh_keys_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.ssh_keys ADD CONSTRAINT ssh_keys_user_id_fingerprint_key UNIQUE (user_id, fingerprint);
ALTER TABLE ONLY public.staged_machines ADD CONSTRAINT staged_machines_pkey PRIMARY KEY (integration, external_ref);
ALTER TABLE ONLY public.task_events ADD CONSTRAINT task_events_pkey PRIMARY KEY (task_id, "position");
ALTER TABLE ONLY public.tasks ADD CONSTRAINT tasks_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.traffic_decisions ADD CONSTRAINT traffic_decisions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.traffic_months ADD CONSTRAINT traffic_months_pkey PRIMARY KEY (period, vm_id);
ALTER TABLE ONLY public.traffic_readings ADD CONSTRAINT traffic_readings_pkey PRIMARY KEY (vm_id, period, node_id, ledger_id);
ALTER TABLE ONLY public.users ADD CONSTRAINT users_email_key UNIQUE (email);
ALTER TABLE ONLY public.users ADD CONSTRAINT users_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.vm_texts ADD CONSTRAINT vm_texts_pkey PRIMARY KEY (vm_id);
ALTER TABLE ONLY public.vms ADD CONSTRAINT vms_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.windows_setups ADD CONSTRAINT windows_setups_pkey PRIMARY KEY (vm_id);
CREATE INDEX alerts_about ON public.alerts USING btree (resource_kind, resource_id) WHERE (closed_at IS NULL);
CREATE INDEX alerts_mailed_alert ON public.alerts_mailed USING btree (alert_id);
CREATE UNIQUE INDEX alerts_open ON public.alerts USING btree (key) WHERE (closed_at IS NULL);
CREATE INDEX alerts_opened ON public.alerts USING btree (opened_at, id) WHERE (closed_at IS NULL);
CREATE INDEX alerts_project ON public.alerts USING btree (project_id) WHERE (closed_at IS NULL);
CREATE INDEX allocations_changed ON public.allocations USING btree (pool_id, changed_at, ip);
CREATE INDEX allocations_ip ON public.allocations USING btree (ip);
CREATE INDEX allocations_nic ON public.allocations USING btree (nic_id) WHERE (nic_id IS NOT NULL);
CREATE INDEX allocations_noted ON public.allocations USING btree (pool_id) WHERE (note IS NOT NULL);
CREATE UNIQUE INDEX allocations_one_primary ON public.allocations USING btree (vm_id) WHERE (is_primary AND (state = 'allocated'::text));
CREATE INDEX allocations_releasing ON public.allocations USING btree (vm_id) WHERE (state = 'releasing'::text);
CREATE INDEX allocations_reservation ON public.allocations USING btree (reservation_id) WHERE (reservation_id IS NOT NULL);
CREATE INDEX allocations_state ON public.allocations USING btree (pool_id, state, ip);
CREATE INDEX allocations_text ON public.allocations USING btree (public.address_text(ip) text_pattern_ops);
CREATE INDEX allocations_vm ON public.allocations USING btree (vm_id) WHERE (vm_id IS NOT NULL);
CREATE INDEX api_tokens_made_by ON public.api_tokens USING btree (made_by) WHERE (made_by IS NOT NULL);
CREATE INDEX api_tokens_user ON public.api_tokens USING btree (user_id);
CREATE INDEX audit_actor ON public.audit USING btree (actor, id);
CREATE INDEX audit_by_actor ON public.audit USING btree (actor_id, id);
CREATE INDEX audit_by_project ON public.audit USING btree (project_id, id);
CREATE INDEX audit_by_target ON public.audit USING btree (target_kind, target_id, id);
CREATE INDEX audit_operation ON public.audit USING btree (operation, id);
CREATE INDEX audit_words ON public.audit USING gin (public.text_words(ARRAY[actor, operation, target_name, target_id])) WITH (fastupdate=off);
CREATE INDEX carried_addresses_ip ON public.carried_addresses USING btree (ip);
CREATE INDEX console_tickets_expiry ON public.console_tickets USING btree (expires_at);
CREATE INDEX familiar_sign_ins_seen ON public.familiar_sign_ins USING btree (seen_at);
CREATE INDEX idempotency_keys_created ON public.idempotency_keys USING btree (created_at);
CREATE INDEX impersonations_customer ON public.impersonations USING btree (customer_id, started_at DESC);
CREATE INDEX machine_backups_kept ON public.machine_backups USING btree (vm_id, completed_at) WHERE (removed_at IS NULL);
CREATE INDEX machine_backups_of_machine ON public.machine_backups USING btree (vm_id, node_id);
CREATE INDEX machine_backups_superseded ON public.machine_backups USING btree (vm_id, node_id) WHERE ((superseded_at IS NOT NULL) AND (removed_at IS NULL));
CREATE INDEX mails_created ON public.mails USING btree (created_at, id);
CREATE INDEX mails_due ON public.mails USING btree (attempt_at) WHERE (state = 'queued'::text);
CREATE INDEX mails_ended ON public.mails USING btree (ended_at) WHERE (ended_at IS NOT NULL);
CREATE INDEX mails_of_user ON public.mails USING btree (user_id, kind, created_at) WHERE (user_id IS NOT NULL);
CREATE INDEX mails_perished ON public.mails USING btree (deadline_at) WHERE ((state = 'failed'::text) AND perishable AND (content IS NOT NULL));
CREATE UNIQUE INDEX networks_one_default ON public.networks USING btree ("default") WHERE "default";
CREATE INDEX nics_network ON public.nics USING btree (network_id);
CREATE INDEX node_capacity_emptiest ON public.node_capacity USING btree (free_share DESC, node_name) WHERE takes_machines;
CREATE INDEX node_certificates_node ON public.node_certificates USING btree (node_id);
CREATE UNIQUE INDEX nodes_host ON public.nodes USING btree (host_uuid) WHERE (deleted_at IS NULL);
CREATE UNIQUE INDEX nodes_name ON public.nodes USING btree (name) WHERE (deleted_at IS NULL);
CREATE INDEX nodes_unheard ON public.nodes USING btree (location_id) WHERE (unheard AND (deleted_at IS NULL));
CREATE INDEX password_asks_account ON public.password_asks USING btree (account, asked_at);
CREATE INDEX password_asks_asked ON public.password_asks USING btree (asked_at);
CREATE INDEX password_asks_place ON public.password_asks USING btree (place, asked_at);
CREATE INDEX password_asks_waiting ON public.password_asks USING btree (id) WHERE (email IS NOT NULL);
CREATE INDEX password_links_expires ON public.password_links USING btree (expires_at);
CREATE INDEX password_links_user ON public.password_links USING btree (user_id);
CREATE INDEX pending_sign_ins_expires ON public.pending_sign_ins USING btree (expires_at);
CREATE INDEX pending_sign_ins_user ON public.pending_sign_ins USING btree (user_id);
CREATE UNIQUE INDEX pools_name ON public.pools USING btree (network_id, name);
CREATE INDEX project_members_user ON public.project_members USING btree (user_id);
CREATE INDEX projects_created ON public.projects USING btree (created_at, id);
CREATE UNIQUE INDEX projects_name ON public.projects USING btree (name);
CREATE INDEX projects_pieces ON public.projects USING gin (public.text_pieces(ARRAY[name])) WITH (fastupdate=off);
CREATE INDEX reservations_pool ON public.reservations USING btree (pool_id, first_slot);
CREATE INDEX security_group_machines_group ON public.security_group_machines USING btree (group_id);
CREATE INDEX service_events_service ON public.service_events USING btree (service_id, id DESC);
CREATE INDEX services_created ON public.services USING btree (created_at, id);
CREATE INDEX services_customer ON public.services USING btree (customer_id);
CREATE INDEX services_unsettled ON public.services USING btree (id) WHERE (NOT settled);
CREATE UNIQUE INDEX services_vm ON public.services USING btree (vm_id);
CREATE INDEX sessions_user ON public.sessions USING btree (user_id);
CREATE INDEX sign_in_attempts_forget ON public.sign_in_attempts USING btree (forget_at);
CREATE INDEX tasks_created ON public.tasks USING btree (created_at, id);
CREATE INDEX tasks_ended ON public.tasks USING btree (ended_at, id);
CREATE INDEX tasks_kind ON public.tasks USING btree (resource_kind, created_at, id);
CREATE INDEX tasks_node ON public.tasks USING btree (node_id, created_at DESC);
CREATE UNIQUE INDEX tasks_one_a_machine ON public.tasks USING btree (resource_id) WHERE ((resource_kind = 'vm'::text) AND (status = ANY (ARRAY['queued'::text, 'running'::text])));
CREATE INDEX tasks_op ON public.tasks USING btree (op, created_at, id);
CREATE INDEX tasks_open ON public.tasks USING btree (resource_kind, resource_id) WHERE (status = ANY (ARRAY['queued'::text, 'running'::text]));
CREATE INDEX tasks_project ON public.tasks USING btree (project_id, created_at, id);
CREATE INDEX tasks_resource ON public.tasks USING btree (resource_id, created_at DESC);
CREATE INDEX tasks_status ON public.tasks USING btree (status, created_at, id);
CREATE INDEX tasks_upgrades ON public.tasks USING btree (node_id, created_at DESC) WHERE (op = 'node.upgrade'::text);
CREATE INDEX tasks_words ON public.tasks USING gin (public.text_words(ARRAY[resource_name, op])) WITH (fastupdate=off);
CREATE UNIQUE INDEX traffic_decisions_standing ON public.traffic_decisions USING btree (vm_id) WHERE standing;
CREATE INDEX traffic_decisions_vm ON public.traffic_decisions USING btree (vm_id, id DESC);
CREATE INDEX traffic_months_vm ON public.traffic_months USING btree (vm_id);
CREATE INDEX traffic_readings_period ON public.traffic_readings USING btree (period);
CREATE INDEX users_company ON public.users USING btree (company, id);
CREATE INDEX users_created ON public.users USING btree (created_at, id);
CREATE INDEX users_name ON public.users USING btree (name, id);
CREATE INDEX users_pieces ON public.users USING gin (public.text_pieces(ARRAY[email, name, company, phone])) WITH (fastupdate=off);
CREATE INDEX users_role ON public.users USING btree (role, email);
CREATE INDEX users_suspended ON public.users USING btree (email) WHERE (suspended_at IS NOT NULL);
CREATE INDEX vm_texts_pieces ON public.vm_texts USING gin (public.text_pieces(ARRAY[name, hostname])) WITH (fastupdate=off);
CREATE INDEX vms_awaiting_power ON public.vms USING btree (node_id, created_at) WHERE ((deleted_at IS NULL) AND (built_at IS NOT NULL) AND (((desired_power = 'running'::text) AND (status = 'stopped'::text)) OR (status = 'failed'::text)));
CREATE INDEX vms_backed_up ON public.vms USING btree (plan_id, backed_up) WHERE ((deleted_at IS NULL) AND (built_at IS NOT NULL));
CREATE INDEX vms_copies_until ON public.vms USING btree (copies_until, id) WHERE (copies_until IS NOT NULL);
CREATE INDEX vms_created ON public.vms USING btree (created_at, id) WHERE (deleted_at IS NULL);
CREATE INDEX vms_deleted ON public.vms USING btree (deleted_at) WHERE (deleted_at IS NOT NULL);
CREATE UNIQUE INDEX vms_idempotency ON public.vms USING btree (idempotency_owner, idempotency_key) WHERE (idempotency_key IS NOT NULL);
CREATE INDEX vms_labels ON public.vms USING gin (labels) WHERE ((deleted_at IS NULL) AND (labels <> '{}'::jsonb));
CREATE INDEX vms_memory ON public.vms USING btree (memory_mib, id) WHERE (deleted_at IS NULL);
CREATE INDEX vms_moves ON public.vms USING btree (id) WHERE ((moving_to IS NOT NULL) OR (moved_from IS NOT NULL));
CREATE UNIQUE INDEX vms_name ON public.vms USING btree (project_id, name) WHERE ((deleted_at IS NULL) AND ((built_at IS NOT NULL) OR (status = 'creating'::text)));
CREATE INDEX vms_named ON public.vms USING btree (name, id) WHERE (deleted_at IS NULL);
CREATE INDEX vms_network_behind ON public.vms USING btree (node_id, id) WHERE ((net_applied < net_wanted) AND (deleted_at IS NULL));
CREATE INDEX vms_node ON public.vms USING btree (node_id) WHERE (deleted_at IS NULL);
CREATE INDEX vms_plan ON public.vms USING btree (plan_id) WHERE (deleted_at IS NULL);
CREATE INDEX vms_project ON public.vms USING btree (project_id, created_at, id) WHERE (deleted_at IS NULL);
CREATE INDEX vms_status ON public.vms USING btree (status, id) INCLUDE (node_id) WHERE (deleted_at IS NULL);
CREATE INDEX vms_unconfirmed ON public.vms USING btree (node_id) WHERE (unconfirmed AND (deleted_at IS NULL));
CREATE INDEX vms_vcpus ON public.vms USING btree (vcpus, id) WHERE (deleted_at IS NULL);
CREATE INDEX vms_with_failures ON public.vms USING btree (id) WHERE ((deleted_at IS NULL) AND (restart_failures > 0));
CREATE INDEX windows_setups_awaited ON public.windows_setups USING btree (vm_id) WHERE (booted_at IS NULL);
CREATE TRIGGER allocations_counted AFTER INSERT OR DELETE ON public.allocations FOR EACH ROW EXECUTE FUNCTION public.count_address();
CREATE TRIGGER allocations_recounted AFTER UPDATE OF state, pool_id ON public.allocations FOR EACH ROW WHEN (((old.state IS DISTINCT FROM new.state) OR (old.pool_id IS DISTINCT FROM new.pool_id))) EXECUTE FUNCTION public.count_address();
CREATE TRIGGER audit_counted AFTER INSERT ON public.audit REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION public.count_audit();
CREATE TRIGGER audit_discounted AFTER DELETE ON public.audit REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION public.count_audit();
CREATE TRIGGER audit_exports_stay BEFORE DELETE OR UPDATE ON public.audit_exports FOR EACH ROW EXECUTE FUNCTION public.refuse_change();
CREATE TRIGGER audit_rows_stay BEFORE DELETE OR UPDATE ON public.audit FOR EACH ROW EXECUTE FUNCTION public.refuse_audit_change();
ALTER TABLE public.audit ENABLE ALWAYS TRIGGER audit_rows_stay;
CREATE TRIGGER audit_stays BEFORE TRUNCATE ON public.audit FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_change();
ALTER TABLE public.audit ENABLE ALWAYS TRIGGER audit_stays;
CREATE TRIGGER nodes_capacity_changed AFTER UPDATE ON public.nodes FOR EACH ROW WHEN ((((((((((((((((old.name IS DISTINCT FROM new.name) OR (old.location_id IS DISTINCT FROM new.location_id)) OR (old.state IS DISTINCT FROM new.state)) OR (old.mode IS DISTINCT FROM new.mode)) OR (old.maintenance IS DISTINCT FROM new.maintenance)) OR (old.deleted_at IS DISTINCT FROM new.deleted_at)) OR (old.cpu_overcommit IS DISTINCT FROM new.cpu_overcommit)) OR (old.memory_overcommit IS DISTINCT FROM new.memory_overcommit)) OR (old.disk_overcommit IS DISTINCT FROM new.disk_overcommit)) OR ((old.capacity IS NULL) IS DISTINCT FROM (new.capacity IS NULL))) OR ((old.capacity -> 'cpus'::text) IS DISTINCT FROM (new.capacity -> 'cpus'::text))) OR ((old.capacity -> 'memory_mib'::text) IS DISTINCT FROM (new.capacity -> 'memory_mib'::text))) OR ((old.capacity -> 'disk_gib'::text) IS DISTINCT FROM (new.capacity -> 'disk_gib'::text))) OR ((old.facts -> 'network_lacks'::text) IS DISTINCT FROM (new.facts -> 'network_lacks'::text))) OR (old.disk_level IS DISTINCT FROM new.disk_level))) EXECUTE FUNCTION public.note_node_capacity();
CREATE TRIGGER nodes_capacity_made AFTER INSERT ON public.nodes FOR EACH ROW EXECUTE FUNCTION public.note_node_capacity();
CREATE TRIGGER tasks_counted AFTER INSERT OR DELETE ON public.tasks FOR EACH ROW EXECUTE FUNCTION public.count_task();
CREATE TRIGGER tasks_counted_by_day AFTER INSERT OR DELETE ON public.tasks FOR EACH ROW EXECUTE FUNCTION public.count_task_day();
CREATE TRIGGER tasks_recounted AFTER UPDATE OF status, ended_at, project_id ON public.tasks FOR EACH ROW WHEN (((((old.status IS DISTINCT FROM new.status) OR ((old.ended_at IS NULL) IS DISTINCT FROM (new.ended_at IS NULL))) OR (old.project_id IS DISTINCT FROM new.project_id)) AND ((old.ended_at IS NOT NULL) OR (new.ended_at IS NOT NULL)))) EXECUTE FUNCTION public.count_task();
CREATE TRIGGER tasks_recounted_by_day AFTER UPDATE OF ended_at, created_at ON public.tasks FOR EACH ROW WHEN ((((old.ended_at IS NULL) IS DISTINCT FROM (new.ended_at IS NULL)) OR (old.created_at IS DISTINCT FROM new.created_at))) EXECUTE FUNCTION public.count_task_day();
CREATE TRIGGER traffic_readings_added AFTER INSERT OR UPDATE ON public.traffic_readings FOR EACH ROW EXECUTE FUNCTION public.add_to_month();
CREATE TRIGGER vms_counted AFTER INSERT OR DELETE ON public.vms FOR EACH ROW EXECUTE FUNCTION public.count_vm();
CREATE TRIGGER vms_counted_by_day AFTER INSERT OR DELETE ON public.vms FOR EACH ROW EXECUTE FUNCTION public.count_vm_day();
CREATE TRIGGER vms_recounted AFTER UPDATE OF status, node_id, project_id, deleted_at ON public.vms FOR EACH ROW WHEN (((((old.status IS DISTINCT FROM new.status) OR (old.node_id IS DISTINCT FROM new.node_id)) OR (old.project_id IS DISTINCT FROM new.project_id)) OR (old.deleted_at IS DISTINCT FROM new.deleted_at))) EXECUTE FUNCTION public.count_vm();
CREATE TRIGGER vms_recounted_by_day AFTER UPDATE OF deleted_at, created_at ON public.vms FOR EACH ROW WHEN ((((old.deleted_at IS NULL) IS DISTINCT FROM (new.deleted_at IS NULL)) OR (old.created_at IS DISTINCT FROM new.created_at))) EXECUTE FUNCTION public.count_vm_day();
CREATE TRIGGER vms_room_changed AFTER UPDATE ON public.vms FOR EACH ROW WHEN (((((((((old.node_id IS DISTINCT FROM new.node_id) OR (old.moving_to IS DISTINCT FROM new.moving_to)) OR (old.moved_from IS DISTINCT FROM new.moved_from)) OR (old.vcpus IS DISTINCT FROM new.vcpus)) OR (old.memory_mib IS DISTINCT FROM new.memory_mib)) OR (old.disk_gib IS DISTINCT FROM new.disk_gib)) OR ((old.deleted_at IS NULL) IS DISTINCT FROM (new.deleted_at IS NULL))) OR (((old.status = 'failed'::text) AND (old.built_at IS NULL)) IS DISTINCT FROM ((new.status = 'failed'::text) AND (new.built_at IS NULL))))) EXECUTE FUNCTION public.promise_room();
CREATE TRIGGER vms_room_left AFTER DELETE ON public.vms FOR EACH ROW WHEN ((old.deleted_at IS NULL)) EXECUTE FUNCTION public.promise_room();
CREATE TRIGGER vms_room_taken AFTER INSERT ON public.vms REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION public.promise_room_to_new();
CREATE TRIGGER vms_texts AFTER INSERT OR UPDATE OF name, hostname ON public.vms FOR EACH ROW EXECUTE FUNCTION public.keep_vm_texts();
ALTER TABLE ONLY public.alerts ADD CONSTRAINT alerts_acknowledged_by_fkey FOREIGN KEY (acknowledged_by) REFERENCES public.users(id);
ALTER TABLE ONLY public.alerts ADD CONSTRAINT alerts_customer_acknowledged_by_fkey FOREIGN KEY (customer_acknowledged_by) REFERENCES public.users(id);
ALTER TABLE ONLY public.alerts_mailed ADD CONSTRAINT alerts_mailed_alert_id_fkey FOREIGN KEY (alert_id) REFERENCES public.alerts(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.alerts_mailed ADD CONSTRAINT alerts_mailed_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.allocations ADD CONSTRAINT allocations_nic_id_fkey FOREIGN KEY (nic_id) REFERENCES public.nics(id);
ALTER TABLE ONLY public.allocations ADD CONSTRAINT allocations_pool_id_fkey FOREIGN KEY (pool_id) REFERENCES public.pools(id);
ALTER TABLE ONLY public.allocations ADD CONSTRAINT allocations_reservation_id_fkey FOREIGN KEY (reservation_id) REFERENCES public.reservations(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.allocations ADD CONSTRAINT allocations_vm_id_fkey FOREIGN KEY (vm_id) REFERENCES public.vms(id);
ALTER TABLE ONLY public.api_tokens ADD CONSTRAINT api_tokens_made_by_fkey FOREIGN KEY (made_by) REFERENCES public.api_tokens(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.api_tokens ADD CONSTRAINT api_tokens_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.carried_addresses ADD CONSTRAINT carried_addresses_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.console_tickets ADD CONSTRAINT console_tickets_session_id_fkey FOREIGN KEY (session_id) REFERENCES public.sessions(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.console_tickets ADD CONSTRAINT console_tickets_token_id_fkey FOREIGN KEY (token_id) REFERENCES public.api_tokens(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.console_tickets ADD CONSTRAINT console_tickets_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.console_tickets ADD CONSTRAINT console_tickets_vm_id_fkey FOREIGN KEY (vm_id) REFERENCES public.vms(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.impersonations ADD CONSTRAINT impersonations_customer_id_fkey FOREIGN KEY (customer_id) REFERENCES public.users(id);
ALTER TABLE ONLY public.impersonations ADD CONSTRAINT impersonations_operator_id_fkey FOREIGN KEY (operator_id) REFERENCES public.users(id);
ALTER TABLE ONLY public.machine_backup_stores ADD CONSTRAINT machine_backup_stores_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.machine_backup_stores ADD CONSTRAINT machine_backup_stores_vm_id_fkey FOREIGN KEY (vm_id) REFERENCES public.vms(id);
ALTER TABLE ONLY public.machine_backups ADD CONSTRAINT machine_backups_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.machine_backups ADD CONSTRAINT machine_backups_vm_id_fkey FOREIGN KEY (vm_id) REFERENCES public.vms(id);
ALTER TABLE ONLY public.mails ADD CONSTRAINT mails_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE SET NULL;
ALTER TABLE ONLY public.nics ADD CONSTRAINT nics_network_id_fkey FOREIGN KEY (network_id) REFERENCES public.networks(id);
ALTER TABLE ONLY public.nics ADD CONSTRAINT nics_vm_id_fkey FOREIGN KEY (vm_id) REFERENCES public.vms(id);
ALTER TABLE ONLY public.node_bootstraps ADD CONSTRAINT node_bootstraps_location_id_fkey FOREIGN KEY (location_id) REFERENCES public.locations(id);
ALTER TABLE ONLY public.node_bootstraps ADD CONSTRAINT node_bootstraps_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.node_capacity ADD CONSTRAINT node_capacity_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.node_certificates ADD CONSTRAINT node_certificates_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.node_images ADD CONSTRAINT node_images_image_id_fkey FOREIGN KEY (image_id) REFERENCES public.images(id);
ALTER TABLE ONLY public.node_images ADD CONSTRAINT node_images_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.node_samples ADD CONSTRAINT node_samples_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.nodes ADD CONSTRAINT nodes_location_id_fkey FOREIGN KEY (location_id) REFERENCES public.locations(id);
ALTER TABLE ONLY public.observed_domains ADD CONSTRAINT observed_domains_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.password_links ADD CONSTRAINT password_links_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.pending_sign_ins ADD CONSTRAINT pending_sign_ins_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.plan_backups ADD CONSTRAINT plan_backups_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES public.plans(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.plan_traffic ADD CONSTRAINT plan_traffic_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES public.plans(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.pools ADD CONSTRAINT pools_location_id_fkey FOREIGN KEY (location_id) REFERENCES public.locations(id);
ALTER TABLE ONLY public.pools ADD CONSTRAINT pools_network_id_fkey FOREIGN KEY (network_id) REFERENCES public.networks(id);
ALTER TABLE ONLY public.project_members ADD CONSTRAINT project_members_project_id_fkey FOREIGN KEY (project_id) REFERENCES public.projects(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.project_members ADD CONSTRAINT project_members_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.recovery_codes ADD CONSTRAINT recovery_codes_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.second_factors(user_id) ON DELETE CASCADE;
ALTER TABLE ONLY public.reservations ADD CONSTRAINT reservations_pool_id_fkey FOREIGN KEY (pool_id) REFERENCES public.pools(id);
ALTER TABLE ONLY public.second_factors ADD CONSTRAINT second_factors_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.security_group_machines ADD CONSTRAINT security_group_machines_group_id_fkey FOREIGN KEY (group_id) REFERENCES public.security_groups(id);
ALTER TABLE ONLY public.security_group_machines ADD CONSTRAINT security_group_machines_vm_id_fkey FOREIGN KEY (vm_id) REFERENCES public.vms(id);
ALTER TABLE ONLY public.security_group_rules ADD CONSTRAINT security_group_rules_group_id_fkey FOREIGN KEY (group_id) REFERENCES public.security_groups(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.security_groups ADD CONSTRAINT security_groups_project_id_fkey FOREIGN KEY (project_id) REFERENCES public.projects(id);
ALTER TABLE ONLY public.service_events ADD CONSTRAINT service_events_service_id_fkey FOREIGN KEY (service_id) REFERENCES public.services(id);
ALTER TABLE ONLY public.service_sign_in_links ADD CONSTRAINT service_sign_in_links_service_id_fkey FOREIGN KEY (service_id) REFERENCES public.services(id);
ALTER TABLE ONLY public.services ADD CONSTRAINT services_customer_id_fkey FOREIGN KEY (customer_id) REFERENCES public.users(id) ON DELETE SET NULL;
ALTER TABLE ONLY public.services ADD CONSTRAINT services_project_id_fkey FOREIGN KEY (project_id) REFERENCES public.projects(id);
ALTER TABLE ONLY public.services ADD CONSTRAINT services_vm_id_fkey FOREIGN KEY (vm_id) REFERENCES public.vms(id) ON DELETE SET NULL;
ALTER TABLE ONLY public.sessions ADD CONSTRAINT sessions_impersonation_id_fkey FOREIGN KEY (impersonation_id) REFERENCES public.impersonations(id);
ALTER TABLE ONLY public.sessions ADD CONSTRAINT sessions_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.ssh_keys ADD CONSTRAINT ssh_keys_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.task_events ADD CONSTRAINT task_events_task_id_fkey FOREIGN KEY (task_id) REFERENCES public.tasks(id);
ALTER TABLE ONLY public.tasks ADD CONSTRAINT tasks_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.tasks ADD CONSTRAINT tasks_project_id_fkey FOREIGN KEY (project_id) REFERENCES public.projects(id);
ALTER TABLE ONLY public.traffic_decisions ADD CONSTRAINT traffic_decisions_vm_id_fkey FOREIGN KEY (vm_id) REFERENCES public.vms(id);
ALTER TABLE ONLY public.traffic_months ADD CONSTRAINT traffic_months_vm_id_fkey FOREIGN KEY (vm_id) REFERENCES public.vms(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.traffic_readings ADD CONSTRAINT traffic_readings_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.traffic_readings ADD CONSTRAINT traffic_readings_vm_id_fkey FOREIGN KEY (vm_id) REFERENCES public.vms(id);
ALTER TABLE ONLY public.vm_texts ADD CONSTRAINT vm_texts_vm_id_fkey FOREIGN KEY (vm_id) REFERENCES public.vms(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.vms ADD CONSTRAINT vms_created_by_fkey FOREIGN KEY (created_by) REFERENCES public.users(id);
ALTER TABLE ONLY public.vms ADD CONSTRAINT vms_image_id_fkey FOREIGN KEY (image_id) REFERENCES public.images(id);
ALTER TABLE ONLY public.vms ADD CONSTRAINT vms_moved_from_fkey FOREIGN KEY (moved_from) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.vms ADD CONSTRAINT vms_moving_to_fkey FOREIGN KEY (moving_to) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.vms ADD CONSTRAINT vms_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.vms ADD CONSTRAINT vms_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES public.plans(id);
ALTER TABLE ONLY public.vms ADD CONSTRAINT vms_project_id_fkey FOREIGN KEY (project_id) REFERENCES public.projects(id);
ALTER TABLE ONLY public.windows_setups ADD CONSTRAINT windows_setups_vm_id_fkey FOREIGN KEY (vm_id) REFERENCES public.vms(id) ON DELETE CASCADE;
