-- Pools of both families, counted in slots; and what is set aside in them, with the reason.

-- The place of an address in its pool: an IPv4 address's distance from the first, an IPv6 sub-prefix's number. What is
-- held at a slot; IPv6 with the sub-prefix's length. The offset is built bit by bit: it may exceed a bigint.
CREATE FUNCTION pool_address(pool cidr, prefix_len integer, slot bigint) RETURNS inet
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE family(pool)
        WHEN 4 THEN set_masklen(pool::inet, 32) + slot
        ELSE set_masklen(set_masklen(pool::inet, 128) | (
            SELECT string_agg(to_hex(substring(bits FROM 16 * part + 1 FOR 16)::bit(16)::integer), ':' ORDER BY part)
            FROM (SELECT (repeat('0', 64)::bit(64) || slot::bit(64)) << (128 - prefix_len) AS bits) shifted,
                 generate_series(0, 7) part
        )::inet, prefix_len)
    END
$$;

-- As it stands on the wire and in the API: 192.0.2.5, 2001:db8:0:5::/64.
CREATE FUNCTION address_text(address inet) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE family(address)
        WHEN 4 THEN host(address)
        ELSE host(address) || '/' || masklen(address)
    END
$$;

ALTER TABLE pools
    ADD COLUMN vlan smallint CHECK (vlan BETWEEN 1 AND 4094),
    -- What one machine receives: an address of IPv4, a sub-prefix of IPv6.
    ADD COLUMN prefix_len smallint,
    ADD COLUMN first_slot bigint,
    ADD COLUMN last_slot bigint,
    -- Where the search for a free slot begins: past the one given last, so that a freed address rests.
    ADD COLUMN next_slot bigint;
UPDATE pools SET
    prefix_len = 32,
    first_slot = range_start - set_masklen(cidr::inet, 32),
    last_slot = range_end - set_masklen(cidr::inet, 32),
    next_slot = coalesce(next_ip, range_start) - set_masklen(cidr::inet, 32);
ALTER TABLE pools
    DROP COLUMN next_ip,
    ALTER COLUMN prefix_len SET NOT NULL,
    ALTER COLUMN first_slot SET NOT NULL,
    ALTER COLUMN last_slot SET NOT NULL,
    ALTER COLUMN next_slot SET NOT NULL,
    ADD CHECK (0 <= first_slot AND first_slot <= last_slot),
    ADD CHECK (family = 6 OR prefix_len = 32),
    ADD CHECK (prefix_len - masklen(cidr) BETWEEN 0 AND 62),
    ADD CHECK (vlan IS NULL OR topology = 'bridged'),
    ADD CHECK (family = 4 OR topology <> 'nat');

-- Why addresses are set aside: by an operator, or (arithmetic) by what the pool and its hosts are.
CREATE TABLE reservations (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    pool_id    uuid NOT NULL REFERENCES pools,
    first_slot bigint NOT NULL,
    last_slot  bigint NOT NULL,
    kind       text NOT NULL,
    note       text NOT NULL,
    arithmetic boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK (first_slot <= last_slot)
);
CREATE INDEX reservations_pool ON reservations (pool_id, first_slot);

-- Each release is told apart from an earlier one of the same address, so that a late answer frees nothing.
CREATE SEQUENCE releases;

ALTER TABLE allocations
    ADD COLUMN slot bigint,
    ADD COLUMN reservation_id uuid REFERENCES reservations ON DELETE CASCADE,
    ADD COLUMN release_id bigint;
UPDATE allocations SET slot = allocations.ip - set_masklen(pools.cidr::inet, 32)
    FROM pools WHERE pools.id = allocations.pool_id;
UPDATE allocations SET release_id = nextval('releases') WHERE state = 'releasing';
INSERT INTO reservations (pool_id, first_slot, last_slot, kind, note, arithmetic)
    SELECT pool_id, slot, slot, CASE WHEN arithmetic THEN coalesce(note, 'gateway') ELSE 'manual' END,
           coalesce(note, ''), arithmetic
    FROM allocations WHERE state = 'reserved';
UPDATE allocations SET reservation_id = reservations.id, note = NULL
    FROM reservations
    WHERE allocations.state = 'reserved' AND reservations.pool_id = allocations.pool_id
      AND reservations.first_slot = allocations.slot;
ALTER TABLE allocations
    DROP COLUMN arithmetic,
    ALTER COLUMN slot SET NOT NULL,
    ADD UNIQUE (pool_id, slot),
    ADD CHECK ((state = 'reserved') = (reservation_id IS NOT NULL)),
    ADD CHECK ((state = 'releasing') = (release_id IS NOT NULL));
CREATE INDEX allocations_reservation ON allocations (reservation_id) WHERE reservation_id IS NOT NULL;
CREATE UNIQUE INDEX allocations_one_primary ON allocations (vm_id) WHERE is_primary AND state = 'allocated';
