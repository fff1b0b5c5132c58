// One envd on a directory of its own, for the tests of its files: argv is PATH-OF-HOLDFAST-ENVD [name filter].
// Tests are collected by test() and run by run().
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { Envd, Stream, basic, envelope } from './envd_client.mjs';

const binary = process.argv[2];
const filter = process.argv[3] ?? '';
if (process.getuid() !== 0) {
  console.log("needs root: files get other users' owners");
  process.exit(77);
}
process.umask(0o022);

export const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'hf-envd-files-'));
export const ctl = path.join(dir, 'ctl.sock');
export const box = path.join(dir, 'box');
fs.mkdirSync(box);
export const sleep = (ms) => new Promise((r) => setTimeout(r, ms));

export const child = spawn(binary, ['--host', '127.0.0.1', '--port', '0', '--listen-ctl', ctl, '--spool-dir', path.join(dir, 'spool')], {
  stdio: ['ignore', 'inherit', 'pipe'],
  env: { PATH: process.env.PATH },
});
export const port = await new Promise((resolve, reject) => {
  let log = '';
  child.stderr.on('data', (d) => {
    log += d;
    process.env.VERBOSE && process.stderr.write(d);
    const m = /msg="?listening"? port=(\d+)/.exec(log);
    if (m) resolve(Number(m[1]));
  });
  child.on('exit', (code, sig) => {
    child.gone = true;
    reject(new Error(`envd ended (${code ?? sig}): ${log}`));
    if (!child.expected) console.log(`envd ended (${code ?? sig}):\n${log}`);
  });
});
export const envd = new Envd(port);

// ---- helpers ----

export const at = (...p) => path.join(box, ...p);
export const q = (params) => '/files?' + new URLSearchParams(params).toString();
export const get = (p, headers = {}, extra = {}) => envd.request('GET', q({ path: p, username: 'root', ...extra }), { headers });
export const json = (res) => JSON.parse(res.body.toString());
export async function put(p, body, headers = {}, extra = {}) {
  return envd.request('POST', q({ path: p, username: 'root', ...extra }), { headers: { 'content-type': 'application/octet-stream', ...headers }, body });
}
export const part = (name, filename, content) =>
  Buffer.concat([
    Buffer.from(`--BND\r\nContent-Disposition: form-data; name="${name}"`),
    filename === undefined ? Buffer.alloc(0) : Buffer.from(`; filename="${filename}"`, 'latin1'),
    Buffer.from('\r\nContent-Type: application/octet-stream\r\n\r\n'),
    Buffer.from(content),
    Buffer.from('\r\n'),
  ]);
export const form = (...parts) => Buffer.concat([...parts, Buffer.from('--BND--\r\n')]);
export async function post(body, params = {}, headers = {}) {
  return envd.request('POST', q({ username: 'root', ...params }), { headers: { 'content-type': 'multipart/form-data; boundary=BND', ...headers }, body });
}
export async function rpc(method, msg, { user = 'root', headers = {} } = {}) {
  const res = await envd.request('POST', `/filesystem.Filesystem/${method}`, {
    headers: { 'content-type': 'application/json', authorization: basic(user), ...headers },
    body: JSON.stringify(msg),
  });
  const out = json(res);
  if (res.status === 200) return out;
  throw Object.assign(new Error(out.message), { code: out.code, status: res.status });
}
export const fails = async (promise, code, pattern) => {
  const e = await promise.then(() => assert.fail('should have failed'), (x) => x);
  assert.equal(e.code, code, e.message);
  if (pattern) assert.match(e.message, pattern);
};
export const refused = (res, status, pattern) => {
  assert.equal(res.status, status, res.body.toString());
  assert.match(res.headers['content-type'], /^application\/json/);
  assert.equal(json(res).code, status);
  if (pattern) assert.match(json(res).message, pattern);
};
export const id = (user) => Number(execFileSync('id', ['-u', user]));
export const b64 = (x) => Buffer.from(x).toString('base64');

export async function watchDir(msg, opts = {}) {
  const s = await envd.request('POST', '/filesystem.Filesystem/WatchDir', {
    headers: { 'content-type': 'application/connect+json', authorization: basic('root'), ...opts.headers },
    body: envelope(0, JSON.stringify(msg)),
    onResponse: (req, res) => new Stream(req, res),
  });
  const first = await s.next();
  if (first.flags & 2) throw Object.assign(new Error(first.msg.error.message), { code: first.msg.error.code });
  assert.deepEqual(first.msg, { start: {} });
  return s;
}
// Events until one satisfies the condition.
export async function eventsUntil(s, cond, ms = 5000) {
  const seen = [];
  for (;;) {
    const item = await s.next(ms).catch(() => null);
    if (!item || item.flags & 2) assert.fail(`no such event; saw ${JSON.stringify(seen)} ${JSON.stringify(item)}`);
    const e = item.msg.filesystem;
    if (!e) continue;
    seen.push(e);
    if (cond(e)) return seen;
  }
}
export const is = (name, type) => (e) => e.name === name && e.type === `EVENT_TYPE_${type}`;

const tests = [];
export const test = (name, fn) => tests.push({ name, fn });

export async function run() {
  let failed = 0;
  for (const { name, fn } of tests) {
    if (!name.includes(filter)) continue;
    const t0 = Date.now();
    try {
      if (child.gone) throw new Error('envd is gone');
      const note = await fn();
      console.log(`ok   ${name} (${Date.now() - t0} ms)${note ? ' ' + note : ''}`);
    } catch (e) {
      failed++;
      console.log(`FAIL ${name}\n${e.stack}`);
    }
  }
  // An orderly end, so that a leak checker in the binary has its say.
  if (!child.gone) {
    child.expected = true;
    const code = await new Promise((r) => {
      child.on('exit', r);
      child.kill('SIGTERM');
    });
    if (code !== 0) {
      failed++;
      console.log(`FAIL envd ended with ${code}`);
    }
  }
  fs.rmSync(dir, { recursive: true, force: true, maxRetries: 3 });
  console.log(failed ? `${failed} failed` : 'all passed');
  process.exit(failed ? 1 : 0);
}
