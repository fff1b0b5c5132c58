// Clients that ask for too much: envd's memory stays bounded and others are served.
// node envd_limits_test.mjs PATH-OF-HOLDFAST-ENVD [name filter]
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { Envd, basic, envelope } from './envd_client.mjs';

const binary = process.argv[2];
const filter = process.argv[3] ?? '';
if (process.getuid() !== 0) {
  console.log('needs root: envd takes other users\' identities');
  process.exit(77);
}

const MIB = 1 << 20;
const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'hf-envd-limits-'));
const pub = path.join(dir, 'public.sock');
const sleep = (ms) => new Promise((r) => setTimeout(r, ms));
const launched = [];
process.on('exit', () => launched.forEach((p) => p.kill('SIGKILL')));

// envd with these options, behind the command `before`.
async function launch(options, before = []) {
  const argv = [...before, binary, '--host', '127.0.0.1', '--port', '0', ...options];
  const proc = spawn(argv[0], argv.slice(1), { stdio: ['ignore', 'inherit', 'pipe'], env: { PATH: process.env.PATH } });
  launched.push(proc);
  let log = '';
  const listening = await new Promise((resolve, reject) => {
    proc.stderr.on('data', (d) => {
      log += d;
      const m = /msg="?listening"? port=(\d+)/.exec(log);
      if (m) resolve(Number(m[1]));
    });
    proc.on('exit', (code, sig) => reject(new Error(`envd ended (${code ?? sig}): ${log}`)));
  });
  const end = async () => {
    proc.removeAllListeners('exit');
    proc.kill('SIGTERM');
    await new Promise((r) => proc.on('exit', r));
  };
  return { proc, port: listening, client: new Envd(listening), end };
}

const main = await launch(['--listen', pub, '--spool-dir', path.join(dir, 'spool')]);
const { proc: child, port, client: envd } = main;
const rssMiB = () => Number(fs.readFileSync(`/proc/${child.pid}/status`, 'utf8').match(/VmRSS:\s+(\d+)/)[1]) / 1024;

// Watches the memory while fn runs; returns the most that fn added.
async function growth(fn) {
  const before = rssMiB();
  let most = 0;
  const timer = setInterval(() => (most = Math.max(most, rssMiB() - before)), 5);
  await fn();
  most = Math.max(most, rssMiB() - before);
  clearInterval(timer);
  return most;
}

const tests = [];
const test = (name, fn) => tests.push({ name, fn });

test('many large requests at once: the last ones are refused, small ones are not', async () => {
  const answers = [];
  const open = [];
  const grown = await growth(async () => {
    for (let i = 0; i < 20; i++) {
      const req = http.request({ host: '127.0.0.1', port, agent: false, method: 'POST', path: '/process.Process/SendInput',
        headers: { 'content-type': 'application/json', 'content-length': 15 * MIB, authorization: basic('root') } });
      req.on('response', (res) => {
        let text = '';
        res.on('data', (d) => (text += d));
        res.on('end', () => answers.push({ status: res.statusCode, text }));
      });
      req.on('error', () => {});
      req.write(Buffer.alloc(15 * MIB - 1, ' '));
      open.push(req);
    }
    for (let i = 0; i < 100 && answers.length < 15; i++) await sleep(50);
    assert.deepEqual(await envd.call('List', {}), { processes: [] });
  });
  assert.ok(answers.length >= 15, `${answers.length} answers`);
  for (const a of answers) {
    assert.equal(a.status, 429);
    assert.match(a.text, /resource_exhausted.*too many large requests at once/);
  }
  assert.ok(grown < 160, `${grown} MiB`);
  for (const req of open) req.destroy();
  await sleep(100);
  const one = await envd.call('SendInput', { process: { pid: 1 }, padding: 'x'.repeat(15 * MIB) }).catch((e) => e.code);
  assert.equal(one, 'not_found');
});

test('many streams that are not read share a limit; readers that come back get everything', async () => {
  const s = await envd.start('/bin/sh', ['-c', 'sleep 1; head -c 3000000 /dev/zero; sleep 1; echo end'], { stdin: false });
  const body = envelope(0, JSON.stringify({ process: { pid: s.pid } }));
  const stuck = [];
  const grown = await growth(async () => {
    for (let i = 0; i < 200; i++) {
      const c = net.connect(pub);
      c.on('error', () => {});
      c.pause();
      c.write(`POST /process.Process/Connect HTTP/1.1\r\nHost: x\r\nContent-Type: application/connect+json\r\nContent-Length: ${body.length}\r\n\r\n`);
      c.write(body);
      stuck.push(c);
    }
    const out = await s.wait();
    assert.equal(out.stdout.length, 3000004);
  });
  assert.ok(grown < 60, `${grown} MiB`);
  let text = '';
  stuck[150].on('data', (d) => (text += d.toString('latin1')));
  stuck[150].resume();
  for (let i = 0; i < 100 && !text.includes('"end"'); i++) await sleep(50);
  let got = 0;
  for (const m of text.matchAll(/"stdout":"([^"]*)"/g)) got += Buffer.from(m[1], 'base64').length;
  assert.equal(got, 3000004);
  for (const c of stuck) c.destroy();
});

test('input that nobody reads is bounded over all processes', async () => {
  const sleepers = await Promise.all(Array.from({ length: 8 }, () => envd.start('/bin/sleep', ['60'], { stdin: true })));
  const input = { stdin: Buffer.alloc(10 * MIB).toString('base64') };
  const results = [];
  for (const s of sleepers) {
    const sent = envd.call('SendInput', { process: { pid: s.pid }, input }).then(() => 'ok', (e) => results.push(e.code));
    await Promise.race([sent, sleep(400)]);
  }
  for (let i = 0; i < 200 && results.length < 2; i++) await sleep(50);
  assert.ok(results.length >= 2 && results.every((r) => r === 'resource_exhausted'), `${results}`);
  for (const s of sleepers) await envd.call('SendSignal', { process: { pid: s.pid }, signal: 'SIGNAL_SIGKILL' });
  for (const s of sleepers) await s.wait();
  const again = await envd.start('/bin/sh', ['-c', 'wc -c'], { stdin: true });
  await envd.call('SendInput', { process: { pid: again.pid }, input });
  await envd.call('CloseStdin', { process: { pid: again.pid } });
  assert.equal((await again.wait()).stdout.toString().trim(), String(10 * MIB));
});

test('what comes along with a command is not kept', async () => {
  const start = (process) => envd.stream('Start', { process, stdin: false });
  const grown = await growth(async () => {
    for (let i = 0; i < 30; i++) await (await start({ cmd: '/bin/true', padding: 'x'.repeat(10 * MIB) })).wait();
    // As much as the kernel takes.
    const args = Array.from({ length: 18 }, () => 'y'.repeat(100000));
    for (let i = 0; i < 30; i++) await (await start({ cmd: '/bin/true', args })).wait();
  });
  assert.ok(grown < 120, `${grown} MiB`);
  const s = await start({ cmd: '/bin/sleep', args: ['5'], padding: 'x' });
  await s.first();
  const { processes } = await envd.call('List', {});
  assert.deepEqual(processes.map((p) => p.config), [{ cmd: '/bin/sleep', args: ['5'] }]);
  await envd.call('SendSignal', { process: { pid: s.pid }, signal: 'SIGNAL_SIGKILL' });
  await s.wait();
  const long = await envd.stream('Start', { process: { cmd: '/bin/true' }, tag: 'x'.repeat(5000) });
  assert.match((await long.first().catch((e) => e)).message, /the tag is longer than 4096 bytes/);
});

const fsCall = async (method, msg) => {
  const res = await envd.request('POST', `/filesystem.Filesystem/${method}`, {
    headers: { 'content-type': 'application/json', authorization: basic('root') }, body: JSON.stringify(msg) });
  const out = JSON.parse(res.body.toString());
  if (res.status !== 200) throw Object.assign(new Error(out.message), { code: out.code });
  return out;
};

// A connection on which WatchDir is running; it is read only when resumed.
async function watchUnread(root) {
  const body = envelope(0, JSON.stringify({ path: root, recursive: true }));
  const c = net.connect(pub);
  let text = '';
  c.on('error', () => {});
  c.on('data', (d) => (text += d.toString('latin1')));
  c.write(`POST /filesystem.Filesystem/WatchDir HTTP/1.1\r\nHost: x\r\nAuthorization: ${basic('root')}\r\nContent-Type: application/connect+json\r\nContent-Length: ${body.length}\r\n\r\n`);
  c.write(body);
  for (let i = 0; i < 100 && !text.includes('"start"'); i++) await sleep(20);
  assert.match(text, /"start"/);
  c.pause();
  return { c, text: () => text };
}

// dir with n empty files of long names, outside of every watched tree.
function heap(name, n) {
  const d = path.join(dir, name);
  fs.mkdirSync(d);
  for (let i = 0; i < n; i++) fs.closeSync(fs.openSync(path.join(d, String(i).padEnd(200, 'x')), 'w'));
  return d;
}

test('large answers that are not read share a limit', async () => {
  const big = heap('big', 12000);
  const body = JSON.stringify({ path: big });
  const stuck = [];
  const grown = await growth(async () => {
    for (let i = 0; i < 30; i++) {
      const c = net.connect(pub);
      c.on('error', () => {});
      c.pause();
      c.write(`POST /filesystem.Filesystem/ListDir HTTP/1.1\r\nHost: x\r\nAuthorization: ${basic('root')}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
      stuck.push(c);
    }
    for (let i = 0, last = -1; i < 100 && rssMiB() !== last; i++) {
      last = rssMiB();
      await sleep(500);
    }
  });
  assert.ok(grown < 190, `${grown} MiB`);
  await assert.rejects(fsCall('ListDir', { path: big }), { code: 'resource_exhausted' });
  assert.equal((await fsCall('ListDir', { path: '/etc/skel' })).code, undefined);
  for (const c of stuck) c.destroy();
  await sleep(300);
  assert.equal((await fsCall('ListDir', { path: big })).entries.length, 12000);
});

test('a full directory that moves into a watched tree waits for a slow reader', async () => {
  const root = path.join(dir, 'watched');
  fs.mkdirSync(root);
  const w = await watchUnread(root);
  const few = heap('few', 8000), many = heap('m'.repeat(240), 22000);
  const grown = await growth(async () => {
    fs.renameSync(few, path.join(root, 'few'));
    await sleep(1500);
  });
  assert.ok(grown < 12, `${grown} MiB`);
  w.c.resume();
  const count = () => w.text().split('"few/').length - 1;
  for (let i = 0; i < 200 && count() < 8000; i++) await sleep(50);
  assert.equal(count(), 8000);
  w.c.pause();
  const more = await growth(async () => {
    fs.renameSync(many, path.join(root, path.basename(many)));
    await sleep(1500);
  });
  assert.ok(more < 30, `${more} MiB`);
  w.c.resume();
  for (let i = 0; i < 200 && !w.text().includes('data_loss'); i++) await sleep(50);
  assert.ok(/data_loss.*more new files at once than can be told/.test(w.text().slice(-2000)), w.text().slice(-300));
  w.c.destroy();
});

test('polled watchers that nobody asks share a limit', async () => {
  const root = path.join(dir, 'polled');
  fs.mkdirSync(root);
  const ids = [];
  for (let i = 0; i < 4; i++) ids.push((await fsCall('CreateWatcher', { path: root })).watcherId);
  for (let i = 0; i < 7000; i++) fs.writeFileSync(path.join(root, `f${i % 50}`), 'x');
  await sleep(500);
  let kept = 0, lost = 0;
  for (const id of ids) {
    const r = await fsCall('GetWatcherEvents', { watcherId: id }).catch((e) => e);
    if (r.code) assert.equal(r.code, 'data_loss');
    lost += r.code ? 1 : 0;
    kept += (r.code ? await fsCall('GetWatcherEvents', { watcherId: id }) : r).events.length;
  }
  assert.ok(kept <= 16384, `${kept}`);
  assert.ok(lost > 0);
  for (const id of ids) await fsCall('RemoveWatcher', { watcherId: id });
  const { watcherId } = await fsCall('CreateWatcher', { path: root });
  fs.writeFileSync(path.join(root, 'again'), '');
  await sleep(100);
  assert.ok((await fsCall('GetWatcherEvents', { watcherId })).events.length > 0);
  await fsCall('RemoveWatcher', { watcherId });
});

test('out of descriptors: no spinning, true words, and all is well afterwards', async () => {
  const small = await launch(['--spool-dir', path.join(dir, 'spool2')], ['prlimit', '--nofile=90:90']);
  const get = (agent) => new Promise((resolve) => {
    http.get({ host: '127.0.0.1', port: small.port, path: '/health', agent }, (res) => {
      res.resume();
      resolve(res.statusCode);
    }).on('error', (e) => resolve(e.code));
  });
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  assert.equal(await get(agent), 204);
  const held = [];
  let refused = 0;
  for (let i = 0; i < 100; i++) {
    const c = net.connect(small.port, '127.0.0.1');
    c.on('error', () => {});
    c.on('close', () => refused++);
    held.push(c);
  }
  for (let i = 0; i < 100 && refused < 70; i++) await sleep(20);
  assert.ok(refused >= 70 && refused < 90, `${refused}`);
  const ticks = () => fs.readFileSync(`/proc/${small.proc.pid}/stat`, 'utf8').split(' ').slice(13, 15).reduce((a, t) => a + Number(t), 0);
  const before = ticks();
  await sleep(1000);
  assert.ok(ticks() - before < 20, `${ticks() - before} ticks in a second`);
  assert.equal(await get(agent), 204);
  for (const c of held) c.destroy();
  await sleep(200);
  // Processes take what is left. What then fails says why; it does not blame the user's name.
  const running = [];
  let error;
  for (let i = 0; i < 40 && !error; i++) {
    const s = await small.client.stream('Start', { process: { cmd: '/bin/sleep', args: ['30'] }, stdin: true });
    await s.first().then(() => running.push(s), (e) => (error = e));
  }
  assert.ok(running.length > 5, `${running.length}`);
  assert.match(String(error?.message), /Too many open files/);
  const file = await small.client.request('GET', '/files?path=/etc/passwd&username=root');
  assert.ok(file.status !== 401, file.body.toString());
  small.client.agent.destroy();
  await sleep(200);
  const again = new Envd(small.port);
  for (const s of running) await again.call('SendSignal', { process: { pid: s.pid }, signal: 'SIGNAL_SIGKILL' });
  await sleep(200);
  assert.equal((await again.run('echo well', { user: 'root' })).stdout.toString(), 'well\n');
  again.agent.destroy();
  agent.destroy();
  await small.end();
});

let failed = 0;
for (const t of tests.filter((x) => x.name.includes(filter))) {
  const t0 = Date.now();
  try {
    await t.fn();
    console.log(`ok   ${t.name} (${Date.now() - t0} ms)`);
  } catch (e) {
    failed++;
    console.log(`FAIL ${t.name}: ${e.stack}`);
  }
}
envd.agent.destroy();
await main.end();
fs.rmSync(dir, { recursive: true, force: true });
process.exit(failed ? 1 : 0);
