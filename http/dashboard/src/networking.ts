/** The API's networking resources, as far as the pages show them. */
import type { Page } from "./api";
import type { Named } from "./model";

export type Family = 4 | 6;
export type Topology = "nat" | "routed" | "bridged";
export type AllocationState = "allocated" | "releasing" | "reserved" | "blocked";

/** Why a figure of traffic may read low: it is a floor, never an exact count. */
export interface Certainty {
  resets: number;
  samples: number;
  first_at: string | null;
}

export interface Month extends Certainty {
  period: string;
  received_bytes: number;
  sent_bytes: number;
}

export interface MachineAddress {
  ip: string;
  family: Family;
  interface: string;
  network: string;
  gateway: string;
  topology: Topology;
  pool_id: string | null;
  pool_name: string | null;
  state: AllocationState;
  primary: boolean;
  changed_at: string;
}

export interface Nic {
  id: string;
  mac: string;
  network_id: string;
  network_name: string;
  mtu: number;
  addresses: MachineAddress[];
}

export interface MachineNetworking {
  vm_id: string;
  nics: Nic[];
  groups: Named[];
  rate_mbps: number | null;
  effective_rate_mbps: number | null;
  isolated: boolean;
  isolated_reason: string | null;
  /** Null: the machine has no plan, and the caller is bound by none. */
  ipv4_allowed: number | null;
  ipv4_count: number;
  month: Month | null;
  status: "applied" | "applying" | "waiting" | "failed";
  error: string | null;
}

export interface Decision {
  id: number;
  vm_id: string;
  vm_name: string;
  period: string;
  action: "report" | "throttle" | "suspend" | "lift";
  at: string;
  counted_bytes: number;
  allowance_bytes: number | null;
  reason: string;
}

/** What counts against an allowance, and how much of it is used. */
export interface Usage extends Certainty {
  counted_bytes: number;
  allowance_bytes: number | null;
  percent: number | null;
  direction: "outbound" | "both";
  action: "report" | "throttle" | "suspend";
  state: "unlimited" | "within" | "exceeded";
}

export interface MachineTraffic {
  vm_id: string;
  period: string;
  position: Usage & { throttle_mbps: number | null };
  history: Decision[];
  months: Month[];
}

export interface TrafficRow extends Usage {
  vm_id: string;
  vm_name: string;
  /** A machine that transferred in that month and is gone. */
  deleted_at: string | null;
  plan: string | null;
  received_bytes: number;
  sent_bytes: number;
}

export interface TrafficPage extends Page<TrafficRow> {
  period: string;
  periods: string[];
  received_bytes: number;
  sent_bytes: number;
  decisions: Decision[];
}

export interface Rule {
  id: string;
  direction: "ingress" | "egress";
  action: "accept" | "drop";
  protocol: "any" | "tcp" | "udp" | "icmp";
  family: Family | null;
  port_from: number | null;
  port_to: number | null;
  cidr: string | null;
  icmp_type: number | null;
  note: string;
}

export interface SecurityGroup extends Named {
  description: string;
  /** Null: for machines of every project. */
  project_id: string | null;
  project_name: string | null;
  default_ingress: Rule["action"];
  default_egress: Rule["action"];
  machine_count: number;
  /** Of one group only. */
  machines?: Named[] | null;
  rules: Rule[];
}

export interface Pool extends Named {
  network_id: string;
  network_name: string;
  location_id: string;
  family: Family;
  cidr: string;
  prefix_len: number | null;
  range_start: string;
  range_end: string;
  gateway: string;
  gateway_mode: "onlink" | "subnet";
  guest_prefix_len: number;
  topology: Topology;
  vlan: number | null;
  nameservers: string[];
  node_ids: string[];
  enabled: boolean;
  total: number;
  reserved_count: number;
  allocated_count: number;
  releasing_count: number;
  blocked_count: number;
  free_count: number;
  pressure: number;
}

export interface Network extends Named {
  default: boolean;
  mtu: number;
  pools: Pool[];
}

export interface Allocation {
  ip: string;
  state: AllocationState;
  vm_id: string | null;
  vm_name: string | null;
  primary: boolean;
  arithmetic: boolean;
  note: string | null;
  changed_at: string;
}

export interface Reservation {
  id: string;
  ip: string;
  range_end: string | null;
  kind: string;
  note: string;
  /** Made by the pool itself (its network address, say): it stays. */
  arithmetic: boolean;
}

export interface NodeNetwork {
  probed_at: string | null;
  agrees: boolean | null;
  differences: { vm_id: string | null; vm_name: string | null; problem: string }[];
  taps: { device: string; vm_id: string | null; vm_name: string | null; up: boolean; rate_mbps: number | null; dropped: Record<string, number> }[];
}

export interface PolicyAnswer {
  effective_from: string;
  machines: number;
  deferred: boolean;
  note: string;
}
