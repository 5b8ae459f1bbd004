/** The API's resources by the names that the pages use. Their fields are generated from the API's own models. */
export type { ApiToken as Token, CertificateView as Certificate, JobModel as Job, Me, ServerStatus, Site, SiteType } from "./generated";
