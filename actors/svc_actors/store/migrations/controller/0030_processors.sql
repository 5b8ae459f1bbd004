-- The processor that the machine's guest was started with, and the one that waits in its definition for the next start.
ALTER TABLE vms ADD COLUMN cpu_mode text NOT NULL DEFAULT 'default';
ALTER TABLE vms ADD COLUMN cpu_next_mode text;
