"""People, sessions, tokens and support sessions; and what all services have: settings, activity, events, alerts."""
