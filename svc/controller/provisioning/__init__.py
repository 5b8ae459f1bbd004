"""The provisioning API: how billing systems order, read and end services (vm-controller-api.md, Provisioning API)."""
