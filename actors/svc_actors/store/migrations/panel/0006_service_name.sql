-- What mail and pages call a panel until its administrator says otherwise.
INSERT INTO settings (name, value) VALUES ('service_name', '"Hosting"') ON CONFLICT (name) DO NOTHING;
