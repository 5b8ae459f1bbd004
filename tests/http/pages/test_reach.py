"""What of the controller is done on its pages, and why the rest is not. The panel's pages have a form for every
operation (tests/system/panel/pages/test_operations.py)."""

from __future__ import annotations

import re
from typing import Final

from svc.controller.catalogue import controller_registry
from tests.http.pages.test_calls import SOURCES, calls

PUT_TOGETHER: Final = {
    "alert.delete_webhook": ("../shared/webhooks.ts", "api.delete(`${webhooks.path}/${endpoint.id}`)"),
    "alert.deliveries": ("../shared/webhooks.ts", "path: `${path}/deliveries`"),
    "alert.delivery": ("../shared/webhooks.ts", "`${path}/deliveries/${one.id}`"),
    "alert.replay": ("../shared/webhooks.ts", "`${path}/deliveries/${one.id}/replay`"),
    "alert.rotate_webhook": ("../shared/webhooks.ts", "`${path}/rotate`"),
    "alert.test_webhook": ("../shared/webhooks.ts", "`${path}/test`"),
    "alert.webhook": ("../shared/webhooks.ts", "`${webhooks.path}/${id}`"),
    "event.stream": ("live.ts", 'EventSource("/api/v1/events")'),
    "person.disable_second_factor": ("views/people.ts", '"second-factor/disable"'),
    "person.impersonate": ("views/people.ts", '"impersonate"'),
    "person.suspend": ("views/people.ts", '"suspend"'),
    "vm.force_stop": ("views/machines.ts", '"force-stop"'),
    "vm.reboot": ("views/machines.ts", '"reboot"'),
    "vm.reset": ("views/machines.ts", '"reset"'),
    "vm.shutdown": ("views/machines.ts", '"shutdown"'),
    "vm.start": ("views/machines.ts", "`${path}/start`"),
}
"""Called by a path that is put together: where, and from what."""

_PROGRAMS: Final = "programs call it"
_COMMAND: Final = "a command of the server's administrator, beside its other settings"
_OTHERWISE: Final = "a page shows the same by another operation"
_NO_PAGE: Final = "there is no page yet: by command and API"

ELSEWHERE: Final = {
    "backup.deleted": _NO_PAGE,
    "backup.discard": _NO_PAGE,
    "backup.schedule": _NO_PAGE,
    "backup.target.add_bucket": _COMMAND,
    "backup.target.add_sftp": _COMMAND,
    "backup.target.list": _COMMAND,
    "backup.target.remove": _COMMAND,
    "backup.target.unuse": _COMMAND,
    "backup.target.use": _COMMAND,
    "plan.backups": _NO_PAGE,
    "certificate.renew": _COMMAND,
    "certificate.show": _COMMAND,
    "location.create": _NO_PAGE,
    "mail.list": _COMMAND,
    "mail.retry": _COMMAND,
    "mail.test": _COMMAND,
    "node.authority": _PROGRAMS,
    "node.bootstraps": _NO_PAGE,
    "node.domains": _NO_PAGE,
    "node.enrol": _PROGRAMS,
    "node.images": _NO_PAGE,
    "node.package": _PROGRAMS,
    "node.samples": _NO_PAGE,
    "node.script": _PROGRAMS,
    "node.withdraw": _NO_PAGE,
    "node.write_off": "after a restoration, when the command line is what there is (docs/backup.md)",
    "person.impersonations": _NO_PAGE,
    "person.set_password": _NO_PAGE,
    "person.show": _OTHERWISE,
    "person.sign_out": _NO_PAGE,
    "person.update": _NO_PAGE,
    "plan.delete": _NO_PAGE,
    "project.add_member": _NO_PAGE,
    "project.create": _NO_PAGE,
    "project.members": _NO_PAGE,
    "project.remove_member": _NO_PAGE,
    "project.show": _OTHERWISE,
    "volume.show": _OTHERWISE,
    "project.update": _NO_PAGE,
    "service.adopt": _PROGRAMS,
    "service.adopt_preview": _PROGRAMS,
    "service.create": _PROGRAMS,
    "service.find": _PROGRAMS,
    "service.link": _PROGRAMS,
    "service.ping": _PROGRAMS,
    "service.reset_password": _PROGRAMS,
    "service.sso": _PROGRAMS,
    "service.stage": _PROGRAMS,
    "service.task": _OTHERWISE,
    "service.usage": _OTHERWISE,
    "session.sso": _PROGRAMS,
    "settings.show": _COMMAND,
    "settings.update": _COMMAND,
    "ssh_key.add": _NO_PAGE,
    "ssh_key.delete": _NO_PAGE,
    "ssh_key.list": _NO_PAGE,
    "user.list": _OTHERWISE,
    "user.update": _NO_PAGE,
    "vm.activity": _OTHERWISE,
    "vm.bandwidth": _NO_PAGE,
    "vm.windows": _NO_PAGE,
    "vm.windows_credential": _NO_PAGE,
    "service.change_plan": _PROGRAMS,
    "service.reinstall": _PROGRAMS,
    "service.resize": _PROGRAMS,
}


def test_every_operation_is_on_a_page_or_it_is_said_why_not() -> None:
    called = calls("controller") | calls("shared")
    on_pages = {
        operation.name
        for operation in controller_registry()
        if (operation.route.method.value, re.sub(r"\{.*?\}", "{}", operation.route.path)) in called
    }

    assert {operation.name for operation in controller_registry()} - on_pages == PUT_TOGETHER.keys() | ELSEWHERE.keys()


def test_what_is_put_together_is_there() -> None:
    missing = {
        name for name, (file, text) in PUT_TOGETHER.items() if text not in (SOURCES / "controller" / file).read_text()
    }

    assert missing == set()
