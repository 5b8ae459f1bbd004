"""How tables show answers with nested parts: a machine's network, a group's rules, the task of an order.

An answer is recognised by its members and not by the command, so the same kind of answer looks alike in all commands.
JSON and YAML are not affected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from svc.cli.naming import is_id
from svc.cli.output import ago, size, spelled

_TASK_FIELDS = ("id", "op", "status", "resource_name", "progress", "message", "error_code", "error_message")
_VM_FIELDS = (
    "name",
    "status",
    "primary_ip",
    "user",
    "node_name",
    "vcpus",
    "memory_mib",
    "disk_gib",
    "image_name",
    "id",
)
_GROUP_FIELDS = ("name", "description", "project_name", "default_ingress", "default_egress", "machine_count")
_FILE_FIELDS = ("name", "kind", "size", "mode", "modified_at", "target")
_BESIDE = "{name} ({letters})"
_ANYBODY = {"ingress": "from anybody", "egress": "to anybody"}

Fields = dict[str, Any]


def shortened(answer: Any) -> Any:
    """How a table shows an order's answer: the machine and the task that it started, in a few lines each."""
    if not isinstance(answer, Mapping):
        return answer
    if "op" in answer and "resource_name" in answer:
        return _given(answer, _TASK_FIELDS)
    return _machine(answer) if isinstance(answer.get("vm"), Mapping) else shaped(answer)


def shaped(answer: Any) -> Any:
    """The answer as a table shows it; an answer that needs no shaping is returned as it is."""
    if isinstance(answer, list):
        return [_row(row) for row in answer]
    if not isinstance(answer, Mapping):
        return answer
    if isinstance(answer.get("items"), list):
        return {**answer, "items": [_row(row) for row in answer["items"]]}
    if isinstance(answer.get("networking"), Mapping):
        return networking(answer["networking"])
    if "nics" in answer and "groups" in answer:
        return networking(answer)
    if "rules" in answer and "default_ingress" in answer:
        return _security_group(answer)
    if "port_from" in answer and "direction" in answer:
        return {"rule": rule_line(answer), "id": answer["id"]}
    if _is_network(answer):
        return _network(answer)
    if "position" in answer and "months" in answer:
        return _traffic(answer)
    if "taps" in answer and "differences" in answer:
        return _node_network(answer)
    if "qr_code" in answer and "secret" in answer:
        return _given(answer, ("secret", "url"))
    if "entries" in answer and "offset" in answer:
        return [_given(entry, _FILE_FIELDS) for entry in answer["entries"]]
    if "lines" in answer and "cursor" in answer:
        return _lines(answer["lines"])
    if isinstance(answer.get("pointing"), Mapping) and "aliases" in answer:
        return _pointed_site(answer)
    if "records" in answer and "delegation" in answer:
        return [_record(row) for row in answer["records"]]
    if "effective_from" in answer and "note" in answer:
        return {name: answer[name] for name in ("note", "effective_from", "machines")}
    return answer


def networking(answer: Mapping[str, Any]) -> Fields:
    """A machine's network: whether the host has applied it, and one address per line."""
    fields: Fields = {"status": answer["status"]}
    if answer["error"]:
        fields["error"] = answer["error"]
    if answer["isolated"]:
        fields["cut off"] = answer["isolated_reason"] or "yes"
    fields["groups"] = ", ".join(group["name"] for group in answer["groups"]) or "none: not filtered"
    fields["rate"] = _rate(answer)
    allowed = answer["ipv4_allowed"]
    fields["ipv4"] = answer["ipv4_count"] if allowed is None else f"{answer['ipv4_count']} of {allowed}"
    if (month := answer["month"]) is not None:
        fields["this month"] = _transfer(month)
    for nic in answer["nics"]:
        fields[f"NIC {nic['mac']}"] = _lines(map(_address, nic["addresses"])) or "no addresses"
    return fields


def rule_line(rule: Mapping[str, Any]) -> str:
    """A rule in words: `ingress accept tcp 80 to 90 from anybody`."""
    ingress = rule["direction"] == "ingress"
    words = [rule["direction"], rule["action"], rule["protocol"]]
    if rule["family"] is not None and rule["cidr"] is None:
        words.append(f"IPv{rule['family']}")
    if rule["port_from"] is not None:
        last = rule["port_to"]
        words.append(str(rule["port_from"]) if last in (None, rule["port_from"]) else f"{rule['port_from']} to {last}")
    if rule["icmp_type"] is not None:
        words.append(f"type {rule['icmp_type']}")
    words.append(f"{'from' if ingress else 'to'} {rule['cidr'] or 'anybody'}")
    return " ".join(words) + (f" ({rule['note']})" if rule["note"] else "")


def _pointed_site(site: Mapping[str, Any]) -> Fields:
    """A site, and in words where each of its names leads."""
    fields = {name: value for name, value in site.items() if name not in ("pointing", "domain", "aliases")}
    pointing = site["pointing"]
    records = [f"{'AAAA' if ':' in address else 'A'} {address}" for address in pointing["addresses"]]
    return {
        "domain": site["domain"],
        "names": _lines(f"{spelled(name['name'])} {name['text']}" for name in pointing["names"]),
        "records to set": ", ".join(records) or "not known",
        "advice": pointing["advice"],
        **fields,
    }


def _record(row: Mapping[str, Any]) -> Fields:
    """A record of a zone, its data in words: `10 mail.example.org`. The form that the DNS has of a name comes first."""
    data = {name: value for name, value in row["data"].items() if name != "type"}
    words = " ".join(str(value) for value in data.values())
    name, words = spelled(row["name"], _BESIDE), spelled(words, _BESIDE)
    return {"name": name, "type": row["type"], "ttl": row["ttl"], "data": words, "id": row["id"]}


def _row(row: Any) -> Any:
    if isinstance(row, Mapping) and "target_kind" in row and not row.get("target_name"):
        return {**row, "target_name": _nameless_target(row)}
    return _network(row) if _is_network(row) else row


def _nameless_target(entry: Mapping[str, Any]) -> str:
    """The target of a refused operation, as the first part of its id: the name of the target was not looked up."""
    given = entry.get("target_id") or ""
    return f"{entry['target_kind']} {given[:8] if is_id(given) else given}".rstrip()


def _is_network(row: Any) -> bool:
    return isinstance(row, Mapping) and "pools" in row and "mtu" in row


def _network(row: Mapping[str, Any]) -> Fields:
    """A network with only the names of its pools; `pool list` shows the rest."""
    return {**row, "pools": ", ".join(pool["name"] for pool in row["pools"])}


def _machine(answer: Mapping[str, Any]) -> Fields:
    task = answer.get("task")
    rest = {key: value for key, value in answer.items() if key in {"password", "replayed"} and value}
    return {**_given(answer["vm"], _VM_FIELDS), **({"task": task["id"]} if isinstance(task, Mapping) else {}), **rest}


def _rate(answer: Mapping[str, Any]) -> str:
    own, effective = answer["rate_mbps"], answer["effective_rate_mbps"]
    if effective is None:
        return "no cap"
    return f"{effective} Mbit/s" + ("" if own == effective else ", throttled" + (f" from {own}" if own else ""))


def _address(address: Mapping[str, Any]) -> str:
    facts = [address["topology"], *(["primary"] if address["primary"] else [])]
    if address["state"] != "allocated":
        facts.append(f"{address['state']} since {ago(address['changed_at'])}")
    return f"{address['interface']} via {address['gateway']} ({', '.join(facts)})"


def _transfer(month: Mapping[str, Any]) -> str:
    if not month["samples"]:
        return "nothing was counted"
    return f"{size(month['received_bytes'])} received, {size(month['sent_bytes'])} sent"


def _security_group(answer: Mapping[str, Any]) -> Fields:
    fields = _given(answer, _GROUP_FIELDS)
    if answer.get("machines"):
        fields["machines"] = ", ".join(machine["name"] for machine in answer["machines"])
    fields["rules"] = _lines(f"{rule['id']}  {rule_line(rule)}" for rule in answer["rules"]) or "none"
    return fields | {"id": answer["id"]}


def _traffic(answer: Mapping[str, Any]) -> Fields:
    position = answer["position"]
    allowance = position["allowance_bytes"]
    counted = size(position["counted_bytes"])
    fields: Fields = {"period": answer["period"], "state": position["state"], "counted": counted}
    if allowance is not None:
        fields["counted"] = f"{counted} of {size(allowance)}, {position['percent']:.1f}% ({position['direction']})"
        held = f" to {position['throttle_mbps']} Mbit/s" if position["action"] == "throttle" else ""
        fields["past it"] = f"{position['action']}{held}"
    fields["a floor"] = f"readings {position['samples']}, counters restarted {position['resets']} times"
    counted_in = [month for month in answer["months"] if month["samples"]]
    fields["months"] = _lines(f"{month['period']}  {_transfer(month)}" for month in counted_in) or "none"
    fields["decisions"] = (
        _lines(
            f"{decision['at'][:16].replace('T', ' ')}  {decision['action']}: {decision['reason']}"
            for decision in answer["history"]
        )
        or "none"
    )
    return fields


def _node_network(answer: Mapping[str, Any]) -> Fields:
    looked_at, agrees = answer["probed_at"], answer["agrees"]
    return {
        "looked at": looked_at if looked_at is None else ago(looked_at),
        "agrees": agrees,
        "differences": _lines(
            f"{each['vm_name'] or each['vm_id'] or 'nobody'}: {each['problem']}" for each in answer["differences"]
        )
        or "none",
        "taps": _lines(map(_tap, answer["taps"])) or "none",
    }


def _tap(tap: Mapping[str, Any]) -> str:
    dropped = ", ".join(f"{count} {reason}" for reason, count in tap["dropped"].items() if count) or "nothing"
    whose = tap["vm_name"] or tap["vm_id"] or "nobody's"
    return f"{tap['device']} {whose}{'' if tap['up'] else ', down'}: {dropped} dropped"


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(texts)


def _given(answer: Mapping[str, Any], names: Iterable[str]) -> Fields:
    return {name: answer[name] for name in names if answer.get(name) not in (None, "")}
