/** The API's networking resources by the names that the pages use. */
import type { PoolModel, TrafficPosition, TrafficUse } from "./generated";

/** What counts against an allowance, and how much of it is used. */
export type Usage = TrafficPosition | TrafficUse;
export type Family = PoolModel["family"];
export type {
  Allocation,
  AllocationState,
  MachineAddress,
  MachineNetworking,
  Network,
  Nic,
  NodeNetwork,
  PlanTrafficResult as PolicyAnswer,
  PoolModel as Pool,
  Reservation,
  SecurityGroup,
  SecurityGroupRule as Rule,
  Topology,
  TrafficDecision as Decision,
  TrafficMonth as Month,
  TrafficPage,
  TrafficPosition,
  TrafficUse as TrafficRow,
  VMTraffic as MachineTraffic,
} from "./generated";
