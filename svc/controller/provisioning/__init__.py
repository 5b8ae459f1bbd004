"""The provisioning API: what billing systems order, look at and end (vm-controller-api.md, Provisioning API)."""
