// Serve a site's node application on the socket that is held for it: `serve_node.cjs SCRIPT`
//
// Started as the site's account, in the folder of the application. Whatever port or path the script listens at first, it
// is given the held socket in its place; so a script that was written for a port needs no change. The variables of the
// application are in a file (apps/model.py).
"use strict";

const fs = require("node:fs");
const net = require("node:net");
const path = require("node:path");
const { pathToFileURL } = require("node:url");

const held = Number(process.env.SVC_APP_SOCKET);
const variables = JSON.parse(fs.readFileSync(process.env.SVC_APP_VARIABLES, "utf8"));
delete process.env.SVC_APP_SOCKET;
delete process.env.SVC_APP_VARIABLES;
Object.assign(process.env, variables);
const listen = net.Server.prototype.listen;
let serving;

net.Server.prototype.listen = function (...given) {
  if (serving !== undefined) return listen.apply(this, given);
  serving = this;
  const called = given.filter((one) => typeof one === "function");
  return listen.call(this, { fd: held }, ...called);
};

process.on("SIGTERM", () => {
  // A script that has an end of its own decides itself.
  if (process.listenerCount("SIGTERM") > 1) return;
  if (serving === undefined) process.exit(0);
  serving.close(() => process.exit(0));
});

const script = path.resolve(process.argv[2]);
process.argv.splice(1, 2, script);
import(pathToFileURL(script)).catch((error) => {
  console.error(error);
  process.exit(1);
});
