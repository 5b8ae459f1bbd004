-- What a task was made for: the request in whose logs it is looked for, and the span (W3C traceparent) under which its own
-- go, also when another process takes it up again.
ALTER TABLE tasks ADD COLUMN request_id text, ADD COLUMN traceparent text;
