"""Mail of sites: what their programs hand in, within limits, until the relay has taken it.

`intake` accepts from the socket that programs of sites see, `spool` has the messages, `queue` the rows, `limits` and
`holds` bound a site, `keys` and `signing` sign. `svc_actors.mail.delivery` sends.

Why: docs/decisions/0057-mail-of-sites.md.
"""
