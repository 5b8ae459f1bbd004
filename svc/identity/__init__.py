"""Who may ask (people, sessions, tokens, support), and what everybody is told (settings, activity, events, alerts)."""
