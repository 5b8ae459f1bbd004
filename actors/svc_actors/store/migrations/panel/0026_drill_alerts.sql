-- The alert of a drill that failed is one of its site: another site's success does not close it.
UPDATE alerts SET key = key || ':' || resource_id
WHERE key = 'backup-drill' AND resource_id IS NOT NULL AND closed_at IS NULL;
