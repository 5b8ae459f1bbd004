"""What a database is made of, for comparisons of one with another."""

from __future__ import annotations

from svc_actors.store import Database


async def schema_of(database: Database) -> list[tuple[object, ...]]:
    """Columns, constraints, indexes, triggers and functions, as the server writes them."""
    return [
        tuple(row.values())
        for row in await database.fetch(
            """
            SELECT 'column', table_name::text, column_name::text,
                   concat_ws(' ', data_type, is_nullable, column_default, collation_name)
            FROM information_schema.columns WHERE table_schema = 'public'
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
