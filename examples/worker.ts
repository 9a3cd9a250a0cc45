// A worker in TypeScript that needs nothing but Node 24: `node worker.ts URL TABLE COMMAND [ARGUMENT …]`.
//
// The worker takes a message from a table of `waterclock serve`, runs a command for it, then takes the next message. While
// the command runs, the worker extends the lease. In a table with groups, it gets the messages of a group in order.
//
// The command gets the delivery as JSON on standard input. Its exit code decides the outcome of the message:
//   0      The message is acked.
//   65     The message goes to the dead-letter table (EX_DATAERR of sysexits.h).
//   75     The message is delivered again after 10 seconds, without counting an attempt (EX_TEMPFAIL).
//   other  The message is delivered again after the table's back-off.
//
// On SIGTERM or SIGINT, the worker takes no more messages, waits for the running command, and ends.
//
// Environment: WATERCLOCK_TOKEN, a token with the right "receive table:TABLE"; CONSUMER, a name that no other worker has;
// LEASE, the seconds by which a lease is extended; BEAT, the seconds between extensions, less than the table's ack_wait.

import { spawn } from "node:child_process";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

interface Delivery {
  delivery: string;
  id: string;
  epoch: number;
}

const [url, table, command, ...parameters] = process.argv.slice(2);
if (command === undefined) {
  console.error("usage: node worker.ts URL TABLE COMMAND [ARGUMENT …]");
  process.exit(2);
}
const place = `${url}/api/tables/${encodeURIComponent(table)}`;
const consumer = process.env.CONSUMER ?? `${hostname()}-${process.pid}`;
const lease = process.env.LEASE ?? "30";
const beat = 1000 * Number(process.env.BEAT ?? 10);

const headers: Record<string, string> = { "Content-Type": "application/json" };
if (process.env.WATERCLOCK_TOKEN) headers.Authorization = `Bearer ${process.env.WATERCLOCK_TOKEN}`;

const stopping = new AbortController();
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => stopping.abort());

function say(text: string): void {
  console.error(`worker ${consumer}: ${text}`);
}

function request(verb: string, body: object, stop: AbortSignal[] = []): Promise<Response> {
  const signal = AbortSignal.any([AbortSignal.timeout(90_000), ...stop]);
  return fetch(`${place}/${verb}`, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/** Send the outcome, and retry after a network error, because these requests may be repeated. */
async function finish(verb: string, body: object): Promise<void> {
  for (const pause of [1, 2, 4, 8, 0]) {
    try {
      const answer = await request(verb, body);
      // A retry would get the same response, for example that the lease was lost.
      if (!answer.ok) say(`${verb}: ${answer.status} ${await answer.text()}`);
      return;
    } catch (error) {
      say(`${verb}: ${error}`);
      await sleep(1000 * pause);
    }
  }
}

/** Run the command, and return its exit code; null if a signal ended it. */
function run(delivery: Delivery): Promise<number | null> {
  return new Promise((resolve, reject) => {
    // The command gets its own process group, so that a signal that ends the worker does not end the command.
    const child = spawn(command, parameters, { stdio: ["pipe", "inherit", "inherit"], detached: true });
    child.on("error", reject);
    child.on("close", resolve);
    child.stdin.on("error", () => {}); // a command need not read its input
    child.stdin.end(`${JSON.stringify(delivery)}\n`);
  });
}

async function handle(delivery: Delivery): Promise<void> {
  const deliveries = [delivery.delivery];
  const beating = setInterval(() => {
    request("extend", { deliveries, duration: `${lease}s` }).catch((error) => say(`extend: ${error}`));
  }, beat);
  let code: number | null = null;
  let error = "";
  try {
    code = await run(delivery);
    error = `exit code ${code}`;
  } catch (failure) {
    error = String(failure);
  } finally {
    clearInterval(beating);
  }
  if (code === 0) await finish("ack", { deliveries });
  else if (code === 65) await finish("dead-letter", { deliveries, why: error });
  else if (code === 75) await finish("snooze", { deliveries, delay: "10s" });
  else await finish("nack", { deliveries, error });
}

say(`taking messages from ${place}`);
while (!stopping.signal.aborted) {
  try {
    // A signal ends the wait immediately. The server then gives back the message that it has just taken.
    const answer = await request("receive", { consumer, limit: 1, wait: "30s" }, [stopping.signal]);
    if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
    const found: { deliveries: Delivery[] } = await answer.json();
    for (const delivery of found.deliveries) await handle(delivery);
  } catch (error) {
    if (stopping.signal.aborted) break;
    say(`receive: ${error}`);
    await sleep(1000);
  }
}
say("stopped");
