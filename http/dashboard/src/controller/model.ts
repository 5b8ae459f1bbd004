/** The API's resources by the names that the pages use. Their fields are generated from the API's own models. */
import type { NodeDetail, NodeModel, Plan } from "./generated";

export type {
  Alert,
  AlertMail,
  AlertWebhook,
  AlertWebhookSecret,
  ApiToken as Token,
  AuditEntry,
  Backup,
  BackupEntry,
  BackupFilePart,
  BackupFolder,
  BackupVolume,
  Image,
  Me,
  MetricSeries,
  MigrationTarget,
  NodeBootstrapCreated as NodeBootstrap,
  Orphan,
  Overview,
  Person,
  ProvisionCatalogue,
  Plan,
  Role,
  Service,
  ServiceEvent,
  SetupStatus,
  Snapshot,
  TaskEventModel as TaskEvent,
  TaskModel as Task,
  VM as Machine,
  VMAddress as Address,
  Volume,
} from "./generated";

/** As a list has it; what only the node's own page has may be there. */
export type Node = NodeModel & Partial<NodeDetail>;

/** What happens to a machine's traffic: as a plan has it, or as it will have it next month. */
export type TrafficPolicy = Pick<Plan, "traffic_gib" | "traffic_direction" | "traffic_action" | "traffic_throttle_mbps">;

export interface Named {
  id: string;
  name: string;
}
