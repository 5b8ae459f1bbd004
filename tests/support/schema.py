"""What a database is made of, for comparisons of one with another."""

from __future__ import annotations

from svc_actors.store import Database


async def schema_of(database: Database) -> list[tuple[object, ...]]:
    """Tables with their columns in order, views, sequences, constraints, indexes, triggers and functions, as the server
    writes them."""
    return [
        tuple(row.values())
        for row in await database.fetch(
            """
            SELECT 'column', table_name::text, column_name::text,
                   concat_ws(' ', row_number() OVER (PARTITION BY table_name ORDER BY ordinal_position), data_type,
                             udt_name, is_nullable, column_default, collation_name, identity_generation,
                             generation_expression)
            FROM information_schema.columns WHERE table_schema = 'public'
            UNION ALL
            SELECT 'table', relname::text, relkind::text, array_to_string(reloptions, ' ')
            FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v')
            UNION ALL
            SELECT 'view', viewname::text, '', definition FROM pg_views WHERE schemaname = 'public'
            UNION ALL
            SELECT 'sequence', sequencename::text, data_type::text,
                   concat_ws(' ', start_value, min_value, max_value, increment_by, cycle)
            FROM pg_sequences WHERE schemaname = 'public'
            UNION ALL
            SELECT 'constraint', conrelid::regclass::text, conname::text, pg_get_constraintdef(oid)
            FROM pg_constraint WHERE connamespace = 'public'::regnamespace
            UNION ALL
            SELECT 'index', tablename::text, indexname::text, indexdef FROM pg_indexes WHERE schemaname = 'public'
            UNION ALL
            SELECT 'trigger', tgrelid::regclass::text, tgname::text, pg_get_triggerdef(oid) || tgenabled::text
            FROM pg_trigger WHERE NOT tgisinternal
            UNION ALL
            SELECT 'function', '', proname::text, pg_get_functiondef(oid)
            FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prokind = 'f'
            ORDER BY 1, 2, 3, 4
            """
        )
    ]
