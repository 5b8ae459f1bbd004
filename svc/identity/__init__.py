"""Who may ask (people, sessions, tokens, support), and what all of them are told (settings, activity, events, alerts)."""
