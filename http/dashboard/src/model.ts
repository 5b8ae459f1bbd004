/** The API's resources, as far as the pages show them. */

export type Role = "administrator" | "staff" | "customer";

export interface Me {
  id: string;
  email: string;
  name: string;
  role: Role;
  impersonation?: object | null;
}

export interface SetupStatus {
  required: boolean;
}

export interface Overview {
  vms: Record<string, number>;
  nodes: Record<string, number>;
  tasks: Record<string, number>;
  alerts: number;
  capacity: { vcpus: number; vcpus_used: number; memory_mib: number; memory_used_mib: number; disk_gib: number; disk_used_gib: number } | null;
}

export interface Address {
  ip: string;
  state: string;
  primary: boolean;
}

export interface Machine {
  id: string;
  name: string;
  hostname: string;
  status: string;
  status_reason: string | null;
  project_id: string;
  project_name: string;
  node_id: string | null;
  node_name: string | null;
  image_name: string;
  plan_name: string | null;
  vcpus: number;
  memory_mib: number;
  disk_gib: number;
  addresses: Address[];
  created_at: string;
}

export interface Task {
  id: string;
  op: string;
  status: "queued" | "running" | "succeeded" | "failed" | "cancelled";
  resource_kind: string;
  resource_id: string;
  resource_name: string;
  progress: number;
  message: string;
  error_message: string | null;
  cancel_requested: boolean;
  created_at: string;
  started_at: string | null;
  ended_at: string | null;
}

export interface TaskEvent {
  position: number;
  at: string;
  level: "info" | "warning" | "error";
  message: string;
  progress: number | null;
}

export interface Node {
  id: string;
  name: string;
  state: string;
  mode: string;
  maintenance: boolean;
  location: Named;
  allocated: { machines: number; vcpus: number; memory_mib: number; disk_gib: number };
  seen_at: string | null;
  facts?: Record<string, unknown> | null;
  capacity?: Record<string, number> | null;
  health?: { status: string; checks: { name: string; status: string; message: string }[]; checked_at: string | null };
}

export interface NodeBootstrap {
  name: string;
  command: string;
}

export interface Image {
  id: string;
  name: string;
  distribution: string;
  release: string;
  enabled: boolean;
  custom: boolean;
  /** Absent until its publisher's checksum was read or its file uploaded: no machine can be made from it before. */
  digest: string | null;
  size_bytes: number | null;
  min_disk_gib: number;
  min_memory_mib: number;
}

export interface Plan extends TrafficPolicy {
  id: string;
  name: string;
  vcpus: number;
  memory_mib: number;
  disk_gib: number;
  slug: string;
  ipv4_count: number;
  enabled: boolean;
  traffic_pending: (TrafficPolicy & { effective_from: string }) | null;
}

export interface TrafficPolicy {
  /** Null: no allowance. */
  traffic_gib: number | null;
  traffic_direction: "outbound" | "both";
  traffic_action: "report" | "throttle" | "suspend";
  traffic_throttle_mbps: number | null;
}

export interface Named {
  id: string;
  name: string;
}

export interface Person {
  id: string;
  email: string;
  name: string;
  role: Role;
  status: string;
  suspension_reason: string | null;
  last_sign_in_at: string | null;
}

export interface Token {
  id: string;
  name: string;
  scopes: string[];
  last_four: string;
  created_at: string;
  last_used_at: string | null;
}

export interface Alert {
  id: string;
  severity: string;
  message: string;
  opened_at: string;
  acknowledged_at: string | null;
}

export interface AuditEntry {
  id: string;
  at: string;
  actor: string;
  operation: string;
  target_name: string | null;
  outcome: string;
  via: string;
}

export interface MetricSeries {
  points: {
    at: string;
    cpu_percent: number;
    memory_used_mib: number | null;
    disk_read_bytes: number;
    disk_written_bytes: number;
    net_received_bytes: number;
    net_sent_bytes: number;
  }[];
}
