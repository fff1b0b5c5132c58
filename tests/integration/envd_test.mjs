// End-to-end test of holdfast-envd over loopback: node envd_test.mjs PATH-OF-HOLDFAST-ENVD [name filter]
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import zlib from 'node:zlib';
import { Envd, basic, envelope, raw } from './envd_client.mjs';

const binary = process.argv[2];
const filter = process.argv[3] ?? '';
if (process.getuid() !== 0) {
  console.log('needs root: envd takes other users\' identities');
  process.exit(77);
}

const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'hf-envd-'));
const ctl = path.join(dir, 'ctl.sock');
const sleep = (ms) => new Promise((r) => setTimeout(r, ms));
const running = (pid) => fs.existsSync(`/proc/${pid}/stat`) && !/\) Z /.test(fs.readFileSync(`/proc/${pid}/stat`, 'utf8'));

function launch(args = []) {
  const child = spawn(binary, ['--host', '127.0.0.1', '--port', '0', '--listen-ctl', ctl, '--spool-dir', path.join(dir, 'spool'), ...args], {
    stdio: ['ignore', 'inherit', 'pipe'],
    env: { PATH: process.env.PATH },
  });
  return new Promise((resolve, reject) => {
    let log = '';
    child.stderr.on('data', (d) => {
      log += d;
      process.env.VERBOSE && process.stderr.write(d);
      const m = /msg="?listening"? port=(\d+)/.exec(log);
      if (m) resolve({ child, port: Number(m[1]) });
    });
    child.on('exit', (code, sig) => reject(new Error(`envd ended (${code ?? sig}): ${log}`)));
  });
}

const { child, port } = await launch();
child.on('exit', () => (child.gone = true));
const envd = new Envd(port);
const b64 = (s) => Buffer.from(s).toString('base64');

function control(body, path = '/init') {
  return new Promise((resolve, reject) => {
    const req = http.request({ socketPath: ctl, method: 'POST', path, headers: { 'content-type': 'application/json' } }, (res) => {
      let text = '';
      res.on('data', (d) => (text += d));
      res.on('end', () => resolve({ status: res.statusCode, headers: res.headers, body: text }));
    });
    req.on('error', reject);
    req.end(body === undefined ? '' : typeof body === 'string' ? body : JSON.stringify(body));
  });
}

const tests = [];
const test = (name, fn) => tests.push({ name, fn });
const fails = async (promise, code, pattern) => {
  const e = await promise.then(
    () => null,
    (x) => x,
  );
  assert.ok(e, `expected ${code}`);
  assert.equal(e.code, code, e.message);
  if (pattern) assert.match(e.message, pattern);
};

// ---- HTTP ----

test('health, cors, 404, 405, 415', async () => {
  const h = await envd.request('GET', '/health', { headers: { origin: 'http://x' } });
  assert.equal(h.status, 204);
  assert.equal(h.headers['cache-control'], 'no-store');
  assert.equal(h.headers['access-control-allow-origin'], '*');
  const pre = await envd.request('OPTIONS', '/process.Process/Start', {
    headers: { origin: 'http://x', 'access-control-request-method': 'POST', 'access-control-request-headers': 'x-access-token' },
  });
  assert.equal(pre.status, 204);
  assert.equal(pre.headers['access-control-allow-headers'], 'x-access-token');
  assert.equal(pre.headers['access-control-max-age'], '7200');
  assert.equal((await envd.request('GET', '/nope')).status, 404);
  assert.equal((await envd.request('POST', '/process.Process/Nope')).status, 404);
  assert.equal((await envd.request('POST', '/health')).status, 405);
  assert.equal((await envd.request('GET', '/process.Process/Start')).status, 405);
  const ct = await envd.request('POST', '/process.Process/List', { headers: { 'content-type': 'text/plain' }, body: '{}' });
  assert.equal(ct.status, 415);
});

test('metrics', async () => {
  const m = JSON.parse((await envd.request('GET', '/metrics')).body);
  for (const k of ['ts', 'cpu_count', 'cpu_used_pct', 'mem_total', 'mem_used', 'mem_cache', 'mem_total_mib', 'mem_used_mib', 'disk_used', 'disk_total'])
    assert.equal(typeof m[k], 'number', k);
  assert.ok(m.mem_total > 0 && m.disk_total > 0 && m.cpu_count > 0);
});

// ---- commands ----

test('run: output, exit codes, end events', async () => {
  const ok = await envd.run('echo hi; echo err >&2');
  assert.equal(ok.stdout.toString(), 'hi\n');
  assert.equal(ok.stderr.toString(), 'err\n');
  assert.deepEqual(ok.end, { exitCode: 0, exited: true, status: 'exit status 0' });
  const bad = await envd.run('exit 3');
  assert.deepEqual(bad.end, { exitCode: 3, exited: true, status: 'exit status 3', error: 'exit status 3' });
  const self = await envd.run('kill -9 $$');
  assert.deepEqual(self.end, { exitCode: -1, exited: false, status: 'signal: killed', error: 'signal: killed' });
  const term = await envd.run('kill -TERM $$');
  assert.equal(term.end.status, 'signal: terminated');
});

test('missing, not executable and scriptless commands end like a shell says', async () => {
  const missing = await (await envd.start('nosuch-command')).wait();
  assert.equal(missing.stderr.toString(), '/bin/sh: 1: exec: nosuch-command: not found\n');
  assert.equal(missing.end.exitCode, 127);
  const denied = await (await envd.start('/etc/passwd')).wait();
  assert.equal(denied.stderr.toString(), '/bin/sh: 1: exec: /etc/passwd: Permission denied\n');
  assert.equal(denied.end.exitCode, 126);
  const script = path.join(dir, 'script');
  fs.writeFileSync(script, 'echo "script $1"\n', { mode: 0o755 });
  const s = await (await envd.start(script, ['a b'])).wait();
  assert.equal(s.stdout.toString(), 'script a b\n');
});

test('errors of Start', async () => {
  await fails(envd.start('/bin/true', [], { cwd: '/no/such' }), 'invalid_argument', /^cwd '\/no\/such' does not exist$/);
  await fails(envd.start('/bin/true', [], { user: 'nobodyhere' }), 'unauthenticated', /^invalid username: 'nobodyhere'$/);
  await fails(envd.stream('Start', {}).then((s) => s.first()), 'invalid_argument', /process.cmd/);
  await fails(envd.start('/bin/true', [], { envs: { 'A=B': 'x' } }), 'invalid_argument', /environment variable/);
  await fails(envd.start('/bin/true', ['x'.repeat(3 << 20)]), 'invalid_argument', /error starting process '\/bin\/true'/);
});

test('environment, user, cwd, umask', async () => {
  const env = await (await envd.start('/usr/bin/env', [], { stdin: false, envs: { A: 'b', HOME: '/x' } })).wait();
  const lines = env.stdout.toString().trim().split('\n');
  const map = Object.fromEntries(lines.map((l) => [l.slice(0, l.indexOf('=')), l.slice(l.indexOf('=') + 1)]));
  assert.equal(map.A, 'b');
  assert.equal(map.HOME, '/x');
  assert.equal(map.USER, 'root');
  assert.equal(map.LOGNAME, 'root');
  assert.equal(map.E2B_SANDBOX, 'true');
  assert.ok(map.PATH);
  assert.ok(!('UV_THREADPOOL_SIZE' in map));
  const who = await envd.run('id -u; id -g; umask; pwd', { user: 'daemon', cwd: '/tmp' });
  assert.equal(who.stdout.toString(), '1\n1\n0022\n/tmp\n');
  const fds = await envd.run('ls /proc/self/fd | wc -l; grep -c . /proc/self/status; cat /proc/self/oom_score_adj');
  assert.match(fds.stdout.toString(), /^4\n\d+\n500\n$/);
});

test('10 MB on one line arrive whole', async () => {
  const s = await envd.run("head -c 10000000 /dev/zero | tr '\\0' x; echo");
  assert.equal(s.stdout.length, 10000001);
  assert.equal(s.missed, 0);
});

test('100 MB through one ordinary reader lose nothing', async () => {
  const s = await envd.start('/bin/sh', ['-c', 'head -c 100000000 /dev/zero'], { stdin: false });
  let n = 0;
  for (let item; (item = await s.next()); ) {
    if (item.flags & 2) break;
    assert.ok(!item.msg.event.missed);
    if (item.msg.event.data) n += Buffer.from(item.msg.event.data.stdout, 'base64').length;
  }
  assert.equal(n, 100000000);
});

test('end waits for the pipes, not for children that closed them', async () => {
  const t0 = Date.now();
  const a = await envd.run('(sleep 1; echo late) & echo early');
  assert.equal(a.stdout.toString(), 'early\nlate\n');
  assert.ok(Date.now() - t0 >= 900);
  const b = await envd.run('sleep 5 >/dev/null 2>&1 & echo $!');
  assert.equal(b.end.exitCode, 0);
  process.kill(Number(b.stdout.toString()));
});

// ---- stdin ----

test('stdin: send, empty, close, disabled', async () => {
  const s = await envd.start('/bin/cat', [], { stdin: true });
  await envd.call('SendInput', { process: { pid: s.pid }, input: { stdin: b64('hello ') } });
  await envd.call('SendInput', { process: { pid: s.pid }, input: { stdin: '' } });
  await envd.call('SendInput', { process: { pid: s.pid }, input: { stdin: b64('world') } });
  await s.until('hello world');
  await envd.call('CloseStdin', { process: { pid: s.pid } });
  await envd.call('CloseStdin', { process: { pid: s.pid } });
  assert.equal((await s.wait()).end.exitCode, 0);
  const off = await envd.start('/bin/sleep', ['5'], { stdin: false });
  await fails(envd.call('SendInput', { process: { pid: off.pid }, input: { stdin: b64('x') } }), 'internal', /^error writing to stdin: stdin not enabled or closed$/);
  await fails(envd.call('SendInput', { process: { pid: off.pid }, input: { pty: b64('x') } }), 'internal');
  await envd.call('CloseStdin', { process: { pid: off.pid } });
  await envd.call('SendSignal', { process: { pid: off.pid }, signal: 'SIGNAL_SIGKILL' });
  await off.wait();
});

test('stdin: 4 MB in one message, slowly read', async () => {
  const data = Buffer.alloc(4 << 20, 'z');
  const s = await envd.start('/bin/sh', ['-c', 'sleep 0.3; wc -c'], {});
  const sent = envd.call('SendInput', { process: { pid: s.pid }, input: { stdin: data.toString('base64') } });
  await sent;
  await envd.call('CloseStdin', { process: { pid: s.pid } });
  assert.equal((await s.wait()).stdout.toString().trim(), String(data.length));
});

test('stdin: input that nobody reads fails when the process ends', async () => {
  const s = await envd.start('/bin/sh', ['-c', 'sleep 0.3'], {});
  await fails(envd.call('SendInput', { process: { pid: s.pid }, input: { stdin: b64('x'.repeat(1 << 20)) } }), 'internal', /^error writing to stdin/);
  await s.wait();
});

test('StreamInput', async () => {
  const s = await envd.start('/bin/cat', [], { stdin: true });
  const messages = [{ start: { process: { pid: s.pid } } }, { keepalive: {} }];
  for (let i = 0; i < 200; i++) messages.push({ data: { input: { stdin: b64(`line ${i}\n`.padEnd(1000, '.')) } } });
  const res = await envd.request('POST', '/process.Process/StreamInput', {
    headers: { 'content-type': 'application/connect+json' },
    body: Buffer.concat(messages.map((m) => envelope(0, JSON.stringify(m)))),
  });
  assert.equal(res.status, 200);
  assert.ok(res.body.toString('latin1').includes('{}'));
  await envd.call('CloseStdin', { process: { pid: s.pid } });
  assert.equal((await s.wait()).stdout.length, 200 * 1000);
  const bad = await envd.request('POST', '/process.Process/StreamInput', {
    headers: { 'content-type': 'application/connect+json' },
    body: envelope(0, JSON.stringify({ data: { input: { stdin: 'eA==' } } })),
  });
  assert.match(bad.body.toString('latin1'), /invalid_argument/);
});

// ---- signals, selectors, list ----

test('signals and selectors', async () => {
  const s = await envd.start('/bin/sleep', ['60'], { tag: 'nap' });
  const list = (await envd.call('List', {})).processes;
  assert.ok(list.some((p) => p.pid === s.pid && p.tag === 'nap' && p.config.cmd === '/bin/sleep'));
  await fails(envd.call('SendSignal', { process: { tag: 'nap' }, signal: 'SIGNAL_UNSPECIFIED' }), 'unimplemented', /^invalid signal: SIGNAL_UNSPECIFIED$/);
  await envd.call('SendSignal', { process: { tag: 'nap' }, signal: 'SIGNAL_SIGTERM' });
  assert.equal((await s.wait()).end.status, 'signal: terminated');
  assert.ok(!running(s.pid));
  await fails(envd.call('SendSignal', { process: { pid: 999999 }, signal: 'SIGNAL_SIGKILL' }), 'not_found', /^process with pid 999999 not found$/);
  await fails(envd.call('SendSignal', { process: { tag: 'zz' }, signal: 9 }), 'not_found', /^process with tag zz not found$/);
  await fails(envd.call('SendSignal', { process: { pid: s.pid }, signal: 9 }), 'not_found');
  await fails(envd.call('SendSignal', { process: {}, signal: 9 }), 'invalid_argument');
});

test('a process that ignores SIGTERM; SIGKILL takes the group and ends the wait', async () => {
  const s = await envd.start('/bin/sh', ['-c', 'trap "" TERM; sleep 300 & echo $!; while :; do sleep 1; done'], { stdin: false });
  const inner = Number((await s.until('\n')).trim());
  await envd.call('SendSignal', { process: { pid: s.pid }, signal: 'SIGNAL_SIGTERM' });
  await sleep(300);
  assert.ok(running(s.pid));
  await envd.call('SendSignal', { process: { pid: s.pid }, signal: 'SIGNAL_SIGKILL' });
  assert.equal((await s.wait(3000)).end.status, 'signal: killed');
  await sleep(100);
  assert.ok(!running(inner));
});

test('SIGTERM to a leader whose child keeps the pipe: end without the wait', async () => {
  const s = await envd.start('/bin/sh', ['-c', 'setsid sleep 20 & echo $!; exec sleep 300'], { stdin: false });
  const inner = Number((await s.until('\n')).trim());
  await envd.call('SendSignal', { process: { pid: s.pid }, signal: 'SIGNAL_SIGTERM' });
  assert.equal((await s.wait(3000)).end.status, 'signal: terminated');
  assert.ok(running(inner));
  process.kill(inner, 'SIGKILL');
});

test('deadline of the starting call kills; of Connect only ends the stream', async () => {
  const s = await envd.start('/bin/sleep', ['60'], { headers: { 'connect-timeout-ms': '400' } });
  await fails(s.wait(), 'deadline_exceeded');
  await sleep(100);
  assert.ok(!running(s.pid));
  const left = await envd.start('/bin/sleep', ['60'], { headers: { 'connect-timeout-ms': '400' } });
  left.close();
  await sleep(800);
  assert.ok(!running(left.pid), 'the deadline holds although the starter went away');
  const kept = await envd.start('/bin/sleep', ['60']);
  const c = await envd.stream('Connect', { process: { pid: kept.pid } }, { headers: { 'connect-timeout-ms': '200' } });
  await c.first();
  await fails(c.wait(), 'deadline_exceeded');
  assert.ok(running(kept.pid));
  await envd.call('SendSignal', { process: { pid: kept.pid }, signal: 'SIGNAL_SIGKILL' });
  await kept.wait();
});

test('a client that goes away leaves the process alone; Connect sees live output', async () => {
  const s = await envd.start('/bin/sh', ['-c', 'for i in 1 2 3 4 5 6 7 8; do echo tick $i; sleep 0.2; done'], { stdin: false });
  await s.until('tick 1');
  s.close();
  const c = await envd.stream('Connect', { process: { pid: s.pid } });
  assert.equal(await c.first(), s.pid);
  const out = await c.wait();
  assert.match(out.stdout.toString(), /tick 8\n$/);
  assert.ok(!out.stdout.toString().includes('tick 1'));
  const again = await envd.stream('Connect', { process: { pid: s.pid } });
  await again.first();
  const ended = await again.wait();
  assert.equal(ended.stdout.length, 0);
  assert.equal(ended.end.exitCode, 0);
});

test('keepalive', async () => {
  const s = await envd.start('/bin/sleep', ['2.5'], { headers: { 'keepalive-ping-interval': '1' } });
  const out = await s.wait();
  assert.equal(out.keepalives, 2);
});

// ---- cursors ----

test('reconnect from a cursor continues where it stopped', async () => {
  const s = await envd.start('/bin/sh', ['-c', 'i=0; while [ $i -lt 3000 ]; do echo "line $i"; i=$((i+1)); done; sleep 0.5; echo done; echo e >&2'], { stdin: false });
  await s.until('line 100\n');
  const have = Buffer.byteLength(s.seen);
  s.close();
  await sleep(200);
  const c = await envd.stream('Connect', { process: { pid: s.pid } }, { headers: { 'holdfast-cursor': `stdout=${have}` } });
  await c.first();
  const out = await c.wait();
  let want = '';
  for (let i = 0; i < 3000; i++) want += `line ${i}\n`;
  assert.equal(s.seen + out.stdout.toString(), want + 'done\n');
  assert.equal(out.missed, 0);
  const info = JSON.parse((await envd.request('GET', `/holdfast/exec/${s.pid}`)).body);
  assert.equal(info.running, false);
  assert.equal(info.exit_code, 0);
  assert.deepEqual(info.cursors, { stdout: want.length + 5, stderr: 2 });
  const bytes = await envd.request('GET', `/holdfast/exec/${s.pid}/stdout?from=${want.length}`);
  assert.equal(bytes.body.toString(), 'done\n');
  assert.equal(bytes.headers['holdfast-cursor'], `${want.length}-${want.length + 5}`);
  const whole = await envd.request('GET', `/holdfast/exec/${s.pid}/stdout`);
  assert.equal(whole.body.toString(), want + 'done\n');
  assert.equal((await envd.request('GET', `/holdfast/exec/${s.pid}/stdout?from=99999999`)).status, 416);
  assert.equal((await envd.request('GET', `/holdfast/exec/${s.pid}/stdout?from=x`)).status, 400);
  assert.equal((await envd.request('GET', `/holdfast/exec/${s.pid}/pty`)).status, 404);
  assert.equal((await envd.request('GET', '/holdfast/exec/4000000')).status, 404);
  const bad = envd.stream('Connect', { process: { pid: s.pid } }, { headers: { 'holdfast-cursor': 'stdout=x' } }).then((x) => x.first());
  await fails(bad, 'invalid_argument', /Holdfast-Cursor/);
  const beyond = envd.stream('Connect', { process: { pid: s.pid } }, { headers: { 'holdfast-cursor': 'stdout=99999999' } }).then((x) => x.first());
  await fails(beyond, 'out_of_range');
});

test('the window is bounded: old bytes are told as missed', async () => {
  const s = await envd.run('head -c 30000000 /dev/zero; echo end >&2');
  assert.equal(s.missed, 0);
  const info = JSON.parse((await envd.request('GET', `/holdfast/exec/${s.pid}`)).body);
  assert.equal(info.cursors.stdout, 30000000);
  const kept = 30000000 - info.kept_from.stdout;
  assert.ok(kept >= 512 << 10 && kept <= (9 << 20), `${kept}`);
  const c = await envd.stream('Connect', { process: { pid: s.pid } }, { headers: { 'holdfast-cursor': 'stdout=0,stderr=0' } });
  await c.first();
  const out = await c.wait();
  assert.equal(out.missed + out.stdout.length, 30000000);
  assert.equal(out.stderr.toString(), 'end\n');
  const size = fs.readdirSync(path.join(dir, 'spool')).map((f) => fs.statSync(path.join(dir, 'spool', f)).blocks * 512);
  assert.ok(size.every((n) => n <= 10 << 20), `${size}`);
});

test('a reader that never reads stalls neither the process nor other readers', async () => {
  const marker = path.join(dir, 'finished');
  const script = `sleep 0.5; head -c 60000000 /dev/zero; touch ${marker}; sleep 0.5`;
  const s = await envd.start('/bin/sh', ['-c', script], { stdin: false });
  const body = envelope(0, JSON.stringify({ process: { pid: s.pid } }));
  const stuck = net.connect(port, '127.0.0.1');
  stuck.pause();
  stuck.write(`POST /process.Process/Connect HTTP/1.1\r\nHost: x\r\nContent-Type: application/connect+json\r\nContent-Length: ${body.length}\r\n\r\n`);
  stuck.write(body);
  const t0 = Date.now();
  const good = await s.wait();
  const took = Date.now() - t0;
  assert.equal(good.stdout.length, 60000000);
  assert.equal(good.missed, 0);
  assert.ok(took < 8000, `took ${took} ms`);
  assert.ok(fs.existsSync(marker));
  // When it reads at last, it is told what it missed, and then the end.
  let text = '';
  let got = 0;
  stuck.on('data', (d) => (text += d.toString('latin1')));
  stuck.resume();
  for (let i = 0; i < 100 && !text.includes('"end"'); i++) await sleep(50);
  const missed = [...text.matchAll(/"missed":(\d+)/g)].reduce((a, m) => a + Number(m[1]), 0);
  for (const m of text.matchAll(/"stdout":"([^"]*)"/g)) got += Buffer.from(m[1], 'base64').length;
  assert.ok(missed > 0);
  assert.match(text, /"end"/);
  stuck.destroy();
});

test('without a spool (full or read-only disk) an ordinary reader loses nothing', async () => {
  const { child: other, port: otherPort } = await launch(['--listen-ctl', ctl + '2', '--spool-dir', '/proc/nowhere']);
  const e = new Envd(otherPort);
  const s = await e.start('/bin/sh', ['-c', 'head -c 50000000 /dev/zero; echo end >&2'], { stdin: false });
  await sleep(300); // let the queue fill
  const out = await s.wait();
  assert.equal(out.stdout.length, 50000000);
  assert.equal(out.missed, 0);
  assert.equal(out.stderr.toString(), 'end\n');
  e.agent.destroy();
  other.kill('SIGTERM');
});

test('no reader at all: output is read and the process goes on', async () => {
  const marker = path.join(dir, 'alone');
  const s = await envd.start('/bin/sh', ['-c', `sleep 0.3; head -c 20000000 /dev/zero; touch ${marker}`], { stdin: false });
  s.close();
  for (let i = 0; i < 100 && !fs.existsSync(marker); i++) await sleep(50);
  assert.ok(fs.existsSync(marker));
});

// ---- PTY ----

test('pty: size, resize, input, exit code, reconnect', async () => {
  const s = await envd.start('/bin/bash', ['--norc', '-i'], { pty: { size: { cols: 91, rows: 33 } }, envs: { TERM: 'xterm', PS1: '$ ' } });
  const type = (text) => envd.call('SendInput', { process: { pid: s.pid }, input: { pty: b64(text) } });
  await type('stty size; tty\n');
  await s.until('33 91');
  await s.until('/dev/pts/');
  await envd.call('Update', { process: { pid: s.pid }, pty: { size: { cols: 120, rows: 40 } } });
  await type('stty size\n');
  await s.until('40 120');
  await fails(envd.call('SendInput', { process: { pid: s.pid }, input: { stdin: b64('x') } }), 'internal');
  await fails(envd.call('CloseStdin', { process: { pid: s.pid } }), 'unknown', /cannot close stdin for PTY process — send Ctrl\+D \(0x04\) instead/);
  s.close();
  const c = await envd.stream('Connect', { process: { pid: s.pid } });
  await c.first();
  await type('echo again $((6*7))\n');
  await c.until('again 42');
  await type('exit 5\n');
  assert.equal((await c.wait()).end.exitCode, 5);
  const plain = await envd.start('/bin/sleep', ['9']);
  await fails(envd.call('Update', { process: { pid: plain.pid }, pty: { size: { cols: 1, rows: 2 } } }), 'internal', /^tty not assigned to process$/);
  await envd.call('SendSignal', { process: { pid: plain.pid }, signal: 'SIGNAL_SIGKILL' });
});

test('pty of another user: Ctrl+C, Ctrl+D, owner', async () => {
  const s = await envd.start('/bin/sh', ['-c', 'stat -c %U $(tty); cat; echo cat ended'], { user: 'daemon', cwd: '/', pty: { size: { cols: 80, rows: 24 } } });
  await s.until('daemon');
  await envd.call('SendInput', { process: { pid: s.pid }, input: { pty: b64('hi\n') } });
  await s.until('hi');
  await envd.call('SendInput', { process: { pid: s.pid }, input: { pty: b64('\x04') } });
  await s.until('cat ended');
  await s.wait();
  const t = await envd.start('/bin/sleep', ['60'], { pty: { size: { cols: 80, rows: 24 } } });
  await sleep(100);
  await envd.call('SendInput', { process: { pid: t.pid }, input: { pty: b64('\x03') } });
  assert.equal((await t.wait()).end.status, 'signal: interrupt');
});

// ---- malformed ----

test('malformed requests are refused clearly', async () => {
  const start = (body, headers = {}) => envd.stream('Start', null, { raw: body, headers }).then((s) => s.first());
  await fails(start(envelope(0, '{nope')), 'invalid_argument', /not valid JSON/);
  await fails(start(Buffer.alloc(0)), 'invalid_argument', /no message/);
  await fails(start(envelope(0, '{}').subarray(0, 6)), 'invalid_argument', /middle of an envelope/);
  await fails(start(Buffer.concat([envelope(0, '{}'), envelope(0, '{}')])), 'invalid_argument', /exactly one/);
  await fails(start(envelope(0x80, '{}')), 'invalid_argument', /unknown flags 0x80/);
  await fails(start(envelope(1, '{}')), 'invalid_argument', /compressed/);
  await fails(start(envelope(2, '{}')), 'invalid_argument', /end-stream/);
  await fails(start(Buffer.from([0, 0xff, 0xff, 0xff, 0xff, 0x7b])), 'resource_exhausted', /larger than 16777216/);
  await fails(start(envelope(0, '{"process":{"cmd":7}}')), 'invalid_argument', /"cmd" must be text/);
  await fails(start(envelope(0, '{}'), { 'connect-timeout-ms': 'soon' }), 'invalid_argument', /Connect-Timeout-Ms/);
  await fails(start(envelope(0, '{}'), { 'connect-protocol-version': '2' }), 'invalid_argument', /connect-protocol-version/);
  await fails(start(envelope(0, '{}'), { 'connect-content-encoding': 'br' }), 'unimplemented', /unknown compression/);
  await fails(start(envelope(0, '{}'), { authorization: 'Basic !!' }), 'unauthenticated');
  await fails(envd.call('List', [1]), 'invalid_argument', /must be a JSON object/);
  await fails(envd.call('SendInput', { process: { pid: -1 } }), 'invalid_argument', /between 0 and/);
  const s = await envd.start('/bin/cat', []);
  await fails(envd.call('SendInput', { process: { pid: s.pid }, input: { stdin: '*' } }), 'invalid_argument', /base64/);
  await envd.call('SendSignal', { process: { pid: s.pid }, signal: 9 });
  const proto = await envd.request('POST', '/process.Process/SendSignal', { headers: { 'content-type': 'application/proto' }, body: Buffer.from([0x0a, 0xff]) });
  assert.equal(proto.status, 400);
  assert.match(proto.body.toString(), /not a valid SendSignalRequest protobuf message/);
});

test('gzip requests and the binary codec', async () => {
  const res = await envd.request('POST', '/process.Process/List', {
    headers: { 'content-type': 'application/json', 'content-encoding': 'gzip' },
    body: zlib.gzipSync('{}'),
  });
  assert.equal(res.status, 200);
  const broken = await envd.request('POST', '/process.Process/List', { headers: { 'content-type': 'application/json', 'content-encoding': 'gzip' }, body: 'nope' });
  assert.equal(broken.status, 400);
  const bomb = await envd.request('POST', '/process.Process/List', {
    headers: { 'content-type': 'application/json', 'content-encoding': 'gzip' },
    body: zlib.gzipSync(Buffer.alloc(64 << 20)),
  });
  assert.equal(bomb.status, 429);
  // Start{process{cmd "/bin/echo", args "hi"}}, written by hand
  const str = (no, s) => Buffer.concat([Buffer.from([(no << 3) | 2, s.length]), Buffer.from(s)]);
  const msg = str(1, Buffer.concat([str(1, '/bin/echo'), str(2, 'hi')]));
  const out = await envd.request('POST', '/process.Process/Start', {
    headers: { 'content-type': 'application/connect+proto', authorization: basic('root') },
    body: envelope(0, msg),
  });
  assert.equal(out.headers['content-type'], 'application/connect+proto');
  assert.ok(out.body.includes(Buffer.from([0x0a, 0x07, 0x12, 0x05, 0x0a, 0x03, 0x68, 0x69, 0x0a])), out.body.toString('hex'));
  assert.ok(out.body.includes('exit status 0'));
  assert.ok(out.body.subarray(-7).equals(envelope(2, '{}')));
});

test('raw garbage does not hurt', async () => {
  for (const bytes of ['\0\0\0\0', 'GET / HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n', 'POST /process.Process/Start HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Type: application/connect+json\r\n\r\nZZ\r\n'])
    await raw(port, bytes, 200);
  assert.equal((await envd.request('GET', '/health')).status, 204);
});

// ---- load ----

test('1,000 processes at once', async () => {
  const streams = [];
  for (let i = 0; i < 1000; i += 100)
    streams.push(...(await Promise.all(Array.from({ length: 100 }, () => envd.start('/bin/cat', [], { tag: 'many' })))));
  const list = (await envd.call('List', {})).processes.filter((p) => p.tag === 'many');
  assert.equal(list.length, 1000);
  assert.equal(new Set(list.map((p) => p.pid)).size, 1000);
  await Promise.all(streams.slice(0, 500).map((s) => envd.call('CloseStdin', { process: { pid: s.pid } })));
  await Promise.all(streams.slice(500).map((s) => envd.call('SendSignal', { process: { pid: s.pid }, signal: 9 })));
  const ends = await Promise.all(streams.map((s) => s.wait()));
  assert.equal(ends.filter((e) => e.end.exitCode === 0).length, 500);
  assert.equal(ends.filter((e) => e.end.status === 'signal: killed').length, 500);
  assert.equal((await envd.call('List', {})).processes.length, 0);
});

test('descriptors and zombies do not pile up', async () => {
  const fds = () => fs.readdirSync(`/proc/${child.pid}/fd`).length;
  await envd.run('true');
  const before = fds();
  for (let i = 0; i < 100; i++) await envd.run('(sleep 0.01 &) ; true');
  await sleep(300);
  assert.ok(fds() <= before + 2, `${before} -> ${fds()}`);
  const zombies = fs.readdirSync('/proc').filter((d) => {
    if (!/^\d+$/.test(d)) return false;
    try {
      const stat = fs.readFileSync(`/proc/${d}/stat`, 'utf8').split(') ')[1].split(' ');
      return stat[0] === 'Z' && Number(stat[1]) === child.pid;
    } catch {
      return false;
    }
  });
  assert.equal(zombies.length, 0);
});

// ---- whose connection is it ----

test('owner: the exec of a connection, control socket only', async () => {
  const server = net.createServer().listen(0, '127.0.0.1');
  await new Promise((r) => server.on('listening', r));
  const peers = [];
  server.on('connection', (s) => {
    s.on('error', () => {});
    peers.push(s);
  });
  const { port } = server.address();
  const owner = async (body) => {
    const res = await control(body, '/owner');
    return { status: res.status, ...JSON.parse(res.body) };
  };
  const connected = async (n) => {
    for (let i = 0; i < 100 && peers.length < n; i++) await sleep(20);
    const s = peers[n - 1];
    return { port: s.remotePort, address: s.remoteAddress, remote_port: port, remote_address: '127.0.0.1' };
  };
  // As another user, in a child of a child that its parent no longer waits for.
  const dial = `exec 3<>/dev/tcp/127.0.0.1/${port}; sleep 30`;
  const a = await envd.start('/bin/bash', ['-c', `(bash -c '${dial}' &) ; sleep 30`], { tag: 'dialler', headers: { authorization: basic('nobody') } });
  const c1 = await connected(1);
  const first = await owner(c1);
  assert.equal(first.status, 200);
  assert.equal(first.exec, String(a.pid));
  assert.equal(first.tag, 'dialler');
  assert.notEqual(first.pid, a.pid);
  const b = await envd.start('/bin/bash', ['-c', `setsid bash -c '${dial}'; true`], { headers: { authorization: basic('root') } });
  const second = await owner(await connected(2));
  assert.equal(second.exec, String(b.pid), 'a session of its own below the exec');
  assert.equal(second.tag, null);
  assert.deepEqual(await owner({ port: c1.port }), first, 'the port alone will do');
  assert.equal((await owner({ port: 1, address: '127.0.0.1' })).status, 404);
  assert.equal((await owner({ ...c1, address: '127.0.0.9' })).status, 404);
  // The test's own end of the connection: a process, but no exec of envd's.
  const own = await owner({ port, address: '127.0.0.1', remote_port: c1.port, remote_address: '127.0.0.1' });
  assert.deepEqual([own.status, own.pid, own.exec], [200, process.pid, '']);
  assert.equal((await owner({ port, address: '127.0.0.1' })).status, 404, 'two connections have this end');
  for (const bad of [{}, { port: 0 }, { port: 65536 }, { port: '1' }, { port: 1, address: 'localhost' }, { port: 1, remote_port: -1 }, 'x', []])
    assert.equal((await owner(bad)).status, 400, JSON.stringify(bad));
  assert.equal((await control({ port: 1, pad: 'x'.repeat(2000) }, '/owner')).status, 413);
  assert.equal((await envd.request('POST', '/owner', { body: '{"port":1}' })).status, 404);
  const many = await Promise.all(Array.from({ length: 60 }, () => control(c1, '/owner')));
  assert.ok(many.every((r) => r.status === 200 || r.status === 503));
  assert.ok(many.some((r) => r.status === 200));
  for (const p of [a, b]) await envd.call('SendSignal', { process: { pid: p.pid }, signal: 'SIGNAL_SIGKILL' });
  for (const s of peers) s.destroy();
  server.close();
});

// ---- /init and the token: last, because the token stays ----

test('init: control socket only, values, token', async () => {
  assert.equal((await envd.request('POST', '/init', { body: '{}' })).status, 404);
  assert.equal((await control('{nope')).status, 400);
  assert.equal((await control({ envVars: { A: 1 } })).status, 400);
  assert.equal((await control({ volumeMounts: [{ path: '/x' }] })).status, 501);
  assert.equal((await control({ caBundle: 7 })).status, 400);
  const notPem = await control({ caBundle: 'nonsense', envVars: { UNSET: '1' } });
  assert.equal(notPem.status, 400);
  assert.match(JSON.parse(notPem.body).message, /certificates in PEM/);
  assert.ok(!JSON.parse((await envd.request('GET', '/envs')).body).UNSET, 'a refused /init changes nothing');
  const ok = await control({ envVars: { FROM_INIT: 'yes' }, sandboxId: 'itest', templateId: 'tbase', timestamp: new Date().toISOString(), defaultUser: 'root', defaultWorkdir: '/tmp' });
  assert.equal(ok.status, 204);
  assert.equal(ok.headers['x-envd-version'], '0.6.13');
  assert.equal(ok.headers['x-holdfast-generation'], undefined, 'no generation was told');
  for (const generation of [0, -1, '2', 1.5]) assert.equal((await control({ generation })).status, 400);
  for (const generation of [1, 4]) assert.equal((await control({ generation })).headers['x-holdfast-generation'], String(generation));
  const envs = JSON.parse((await envd.request('GET', '/envs')).body);
  assert.deepEqual(envs, { E2B_SANDBOX: 'true', E2B_SANDBOX_ID: 'itest', E2B_TEMPLATE_ID: 'tbase', FROM_INIT: 'yes' });
  assert.equal(fs.readFileSync('/run/e2b/.E2B_SANDBOX_ID', 'utf8'), 'itest');
  assert.equal((await control({ envVars: { OLD: '1' }, timestamp: '2020-01-01T00:00:00Z' })).status, 204);
  assert.ok(!JSON.parse((await envd.request('GET', '/envs')).body).OLD, 'an older /init is ignored');
  const s = await envd.start('/bin/sh', ['-c', 'pwd; id -un; echo $FROM_INIT $E2B_SANDBOX_ID'], { headers: { authorization: '' } });
  assert.equal((await s.wait()).stdout.toString(), '/tmp\nroot\nyes itest\n');
  const token = 'tok-' + 'q'.repeat(40);
  assert.equal((await control({ accessToken: token })).status, 204);
  assert.equal((await control({ accessToken: token })).status, 204);
  assert.equal((await control({ accessToken: 'other' })).status, 401);
  assert.equal((await envd.request('GET', '/health')).status, 204);
  const no = await envd.request('GET', '/metrics');
  assert.equal(no.status, 401);
  assert.deepEqual(JSON.parse(no.body), { code: 401, message: 'unauthorized access, please provide a valid access token or method signing if supported' });
  assert.equal((await envd.request('GET', '/holdfast/exec')).status, 401);
  assert.equal((await envd.request('POST', '/process.Process/List', { headers: { 'content-type': 'application/json' }, body: '{}' })).status, 401);
  assert.equal((await envd.request('GET', '/metrics', { headers: { 'x-access-token': token.slice(1) } })).status, 401);
  assert.equal((await envd.request('GET', '/metrics', { headers: { 'x-access-token': token } })).status, 200);
  const seen = await envd.start('/bin/sh', ['-c', `cat /proc/self/environ; cat /proc/${child.pid}/cmdline`], { stdin: false, headers: { 'x-access-token': token } });
  assert.ok(!(await seen.wait()).stdout.toString().includes(token));
});

test('SIGTERM ends envd and everything it runs', async () => {
  const s = await envd.start('/bin/sleep', ['60'], { headers: { 'x-access-token': 'tok-' + 'q'.repeat(40) } });
  const gone = new Promise((r) => child.on('exit', (code) => r(code)));
  child.kill('SIGTERM');
  assert.equal(await gone, 0);
  assert.ok(!running(s.pid));
});

let failed = 0;
for (const { name, fn } of tests) {
  if (!name.includes(filter)) continue;
  const t0 = Date.now();
  try {
    if (child.gone && !name.startsWith('SIGTERM')) throw new Error('envd is gone');
    await fn();
    console.log(`ok   ${name} (${Date.now() - t0} ms)`);
  } catch (e) {
    failed++;
    console.log(`FAIL ${name}\n${e.stack}`);
  }
}
if (!child.gone) child.kill('SIGKILL');
fs.rmSync(dir, { recursive: true, force: true });
console.log(failed ? `${failed} failed` : 'all passed');
process.exit(failed ? 1 : 0);
