// End-to-end test of envd's files: node envd_files_test.mjs PATH-OF-HOLDFAST-ENVD [name filter]
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import crypto from 'node:crypto';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import zlib from 'node:zlib';
import { Envd, Stream, basic, envelope, raw } from './envd_client.mjs';

const binary = process.argv[2];
const filter = process.argv[3] ?? '';
if (process.getuid() !== 0) {
  console.log("needs root: files get other users' owners");
  process.exit(77);
}
process.umask(0o022);

const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'hf-envd-files-'));
const ctl = path.join(dir, 'ctl.sock');
const box = path.join(dir, 'box');
fs.mkdirSync(box);
const sleep = (ms) => new Promise((r) => setTimeout(r, ms));

const child = spawn(binary, ['--host', '127.0.0.1', '--port', '0', '--listen-ctl', ctl, '--spool-dir', path.join(dir, 'spool')], {
  stdio: ['ignore', 'inherit', 'pipe'],
  env: { PATH: process.env.PATH },
});
const port = await new Promise((resolve, reject) => {
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
const envd = new Envd(port);

// ---- helpers ----

const at = (...p) => path.join(box, ...p);
const q = (params) => '/files?' + new URLSearchParams(params).toString();
const get = (p, headers = {}, extra = {}) => envd.request('GET', q({ path: p, username: 'root', ...extra }), { headers });
const json = (res) => JSON.parse(res.body.toString());
async function put(p, body, headers = {}, extra = {}) {
  return envd.request('POST', q({ path: p, username: 'root', ...extra }), { headers: { 'content-type': 'application/octet-stream', ...headers }, body });
}
const part = (name, filename, content) =>
  Buffer.concat([
    Buffer.from(`--BND\r\nContent-Disposition: form-data; name="${name}"`),
    filename === undefined ? Buffer.alloc(0) : Buffer.from(`; filename="${filename}"`, 'latin1'),
    Buffer.from('\r\nContent-Type: application/octet-stream\r\n\r\n'),
    Buffer.from(content),
    Buffer.from('\r\n'),
  ]);
const form = (...parts) => Buffer.concat([...parts, Buffer.from('--BND--\r\n')]);
async function post(body, params = {}, headers = {}) {
  return envd.request('POST', q({ username: 'root', ...params }), { headers: { 'content-type': 'multipart/form-data; boundary=BND', ...headers }, body });
}
async function rpc(method, msg, { user = 'root', headers = {} } = {}) {
  const res = await envd.request('POST', `/filesystem.Filesystem/${method}`, {
    headers: { 'content-type': 'application/json', authorization: basic(user), ...headers },
    body: JSON.stringify(msg),
  });
  const out = json(res);
  if (res.status === 200) return out;
  throw Object.assign(new Error(out.message), { code: out.code, status: res.status });
}
const fails = async (promise, code, pattern) => {
  const e = await promise.then(() => assert.fail('should have failed'), (x) => x);
  assert.equal(e.code, code, e.message);
  if (pattern) assert.match(e.message, pattern);
};
const refused = (res, status, pattern) => {
  assert.equal(res.status, status, res.body.toString());
  assert.match(res.headers['content-type'], /^application\/json/);
  assert.equal(json(res).code, status);
  if (pattern) assert.match(json(res).message, pattern);
};
const id = (user) => Number(execFileSync('id', ['-u', user]));
const b64 = (x) => Buffer.from(x).toString('base64');

async function watchDir(msg, opts = {}) {
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
async function eventsUntil(s, cond, ms = 5000) {
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
const is = (name, type) => (e) => e.name === name && e.type === `EVENT_TYPE_${type}`;

const tests = [];
const test = (name, fn) => tests.push({ name, fn });

// ---- POST ----

test('octet-stream: sizes around every buffer limit', async () => {
  for (const n of [0, 1, 16383, 16384, 18000, 65535, 65536, 65537, 262143, 262144, 262145, 1 << 20, (5 << 20) + 3]) {
    const body = crypto.randomBytes(n);
    const res = await put(at(`size-${n}`), body);
    assert.equal(res.status, 200);
    assert.deepEqual(json(res), [{ path: at(`size-${n}`), name: `size-${n}`, type: 'file' }]);
    assert.ok(fs.readFileSync(at(`size-${n}`)).equals(body), `size ${n}`);
    const back = await get(at(`size-${n}`));
    assert.equal(back.status, 200);
    assert.equal(back.headers['content-length'], String(n));
    assert.ok(back.body.equals(body), `read of ${n}`);
  }
});

test('chunked uploads in odd pieces, many at once', async () => {
  await Promise.all(
    Array.from({ length: 12 }, async (_, i) => {
      const body = crypto.randomBytes(700001 + i);
      const res = await new Promise((resolve, reject) => {
        const req = http.request(
          { host: '127.0.0.1', port, method: 'POST', path: q({ path: at('par', `f${i}`), username: 'root' }), headers: { 'content-type': 'application/octet-stream' }, agent: envd.agent },
          (r) => r.resume().on('end', () => resolve(r)),
        );
        req.on('error', reject);
        (async () => {
          for (let pos = 0; pos < body.length; pos += 4099 + i) if (!req.write(body.subarray(pos, pos + 4099 + i))) await new Promise((r) => req.once('drain', r));
          req.end();
        })();
      });
      assert.equal(res.statusCode, 200);
      assert.ok(fs.readFileSync(at('par', `f${i}`)).equals(body));
    }),
  );
});

test('new files and directories belong to the user, 0644 and 0755', async () => {
  const res = await put(at('own', 'a', 'b', 'f'), 'x', {}, { username: 'nobody' });
  assert.equal(res.status, 200);
  const st = fs.statSync(at('own', 'a', 'b', 'f'));
  assert.equal(st.uid, id('nobody'));
  assert.equal(st.mode & 0o7777, 0o644);
  for (const d of [at('own'), at('own', 'a'), at('own', 'a', 'b')]) {
    assert.equal(fs.statSync(d).uid, id('nobody'));
    assert.equal(fs.statSync(d).mode & 0o7777, 0o755);
  }
  assert.equal(fs.statSync(box).uid, 0);
});

test('an existing file keeps its inode and mode', async () => {
  fs.writeFileSync(at('old'), 'a long old content');
  fs.chmodSync(at('old'), 0o755);
  const before = fs.statSync(at('old')).ino;
  assert.equal((await put(at('old'), 'new')).status, 200);
  assert.equal(fs.readFileSync(at('old'), 'utf8'), 'new');
  assert.equal(fs.statSync(at('old')).ino, before);
  assert.equal(fs.statSync(at('old')).mode & 0o777, 0o755);
});

test('multipart: several files, paths of the part names, ignored parts', async () => {
  const big = crypto.randomBytes(1 << 20);
  const res = await post(form(part('file', at('m/a.txt'), 'one'), part('note', undefined, 'ignored'), part('file', at('m/sub/b'), big), part('file', at('m/empty'), '')));
  assert.equal(res.status, 200);
  assert.deepEqual(json(res).map((e) => e.path), [at('m/a.txt'), at('m/sub/b'), at('m/empty')]);
  assert.equal(fs.readFileSync(at('m/a.txt'), 'utf8'), 'one');
  assert.ok(fs.readFileSync(at('m/sub/b')).equals(big));
  assert.equal(fs.statSync(at('m/empty')).size, 0);
  assert.deepEqual(json(await post(form(part('other', 'x', 'y')))), []);
});

test('multipart: query path wins; a second part is refused', async () => {
  const one = await post(form(part('file', 'whatever', 'x')), { path: at('q1') });
  assert.equal(json(one)[0].path, at('q1'));
  refused(await post(form(part('file', 'a', 'x'), part('file', 'b', 'y')), { path: at('q2') }), 400, /you cannot upload multiple files to the same path/);
  assert.equal(fs.readFileSync(at('q2'), 'utf8'), 'x');
  refused(await post(form(part('file', undefined, 'x'))), 400, /filename/);
});

test('multipart: relative names are below the home directory', async () => {
  const name = `.hf-files-${process.pid}`;
  const res = await post(form(part('file', `${name}/x/../y`, 'z')), { username: 'root' });
  assert.equal(json(res)[0].path, `${os.userInfo().homedir}/${name}/y`);
  assert.equal((await get(`~/${name}/y`)).body.toString(), 'z');
  await rpc('Remove', { path: name });
  assert.ok(!fs.existsSync(path.join(os.userInfo().homedir, name)));
});

test('multipart: malformed bodies and names', async () => {
  refused(await post('--BND\r\nno colon\r\n\r\n--BND--'), 400, /header line/);
  refused(await post('--BND\r\nContent-Disposition: form-data; name="file"; filename="' + at('x') + '"\r\n\r\ncut'), 400, /last boundary/);
  assert.ok(!fs.existsSync(at('x')), 'a cut upload leaves no new file');
  refused(await post(form(part('file', at('nul\0x'), 'y'))), 400, /header line/);
  refused(await post('x', {}, { 'content-type': 'multipart/form-data' }), 400, /boundary/);
  refused(await post('x', {}, { 'content-type': 'text/plain' }), 400, /unsupported content type: text\/plain/);
  refused(await envd.request('POST', '/files?username=root', { headers: { 'content-type': 'application/octet-stream' }, body: 'x' }), 400, /path query parameter is required/);
  refused(await post('--BND\r\n' + 'X: ' + 'v'.repeat(20000) + '\r\n\r\n--BND--'), 400, /longer than/);
  refused(await post('--BND\r\n' + 'X: v\r\n'.repeat(40) + '\r\n\r\n--BND--'), 400, /header lines/);
});

test('gzip bodies, whole and broken', async () => {
  const text = 'text '.repeat(300000);
  const gz = zlib.gzipSync(text);
  assert.equal((await put(at('gz'), gz, { 'content-encoding': 'gzip' })).status, 200);
  assert.equal(fs.readFileSync(at('gz'), 'utf8'), text);
  assert.equal((await put(at('gz2'), Buffer.concat([gz, zlib.gzipSync('more')]), { 'content-encoding': 'gzip' })).status, 200);
  assert.equal(fs.readFileSync(at('gz2'), 'utf8'), text + 'more');
  const multi = zlib.gzipSync(form(part('file', at('gz3'), text)));
  assert.equal(json(await post(multi, {}, { 'content-encoding': 'gzip' }))[0].path, at('gz3'));
  assert.equal(fs.readFileSync(at('gz3'), 'utf8'), text);
  refused(await put(at('bad1'), 'not gzip', { 'content-encoding': 'gzip' }), 400, /^error decompressing request body: /);
  refused(await put(at('bad2'), gz.subarray(0, gz.length - 9), { 'content-encoding': 'gzip' }), 400, /unexpected EOF/);
  refused(await put(at('bad3'), 'x', { 'content-encoding': 'br' }), 400, /^error decompressing request body: unsupported Content-Encoding: br/);
  assert.ok(!fs.existsSync(at('bad1')) && !fs.existsSync(at('bad2')));
});

test('a refused upload is answered, however much the client sends', async () => {
  const flood = (n, headers) =>
    new Promise((resolve, reject) => {
      const req = http.request({ host: '127.0.0.1', port, method: 'POST', path: q({ path: at('refused'), username: 'root' }), headers }, (res) => {
        const parts = [];
        res.on('data', (d) => parts.push(d));
        res.on('end', () => resolve({ status: res.statusCode, headers: res.headers, body: Buffer.concat(parts), sent }));
      });
      let sent = 0;
      req.on('error', reject);
      const chunk = Buffer.alloc(1 << 20);
      (async () => {
        while (sent < n && !req.destroyed && !req.res) {
          sent += chunk.length;
          if (!req.write(chunk)) await Promise.race([new Promise((r) => req.once('drain', r)), sleep(1000)]);
        }
        req.end();
      })();
    });
  const res = await flood(40 << 20, { 'content-type': 'text/plain' });
  refused(res, 400, /unsupported content type/);
  assert.equal(res.sent, 40 << 20, 'heard out');
  const waiting = await raw(port, 'POST /files?path=x&username=root HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n', 300);
  assert.match(waiting, /^HTTP\/1.1 400 /);
  const huge = await raw(port, 'POST /files?path=x&username=root HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 67108865\r\n\r\n', 300);
  assert.match(huge, /^HTTP\/1.1 400 /);
});

test('PUT and HEAD', async () => {
  const res = await envd.request('PUT', q({ path: at('put'), username: 'root' }), { body: 'hello' });
  assert.equal(res.status, 200);
  assert.equal(fs.readFileSync(at('put'), 'utf8'), 'hello');
  const head = await envd.request('HEAD', q({ path: at('put'), username: 'root' }));
  assert.equal(head.headers['content-length'], '5');
  assert.equal(head.body.length, 0);
  assert.equal((await envd.request('DELETE', q({ path: at('put') }))).status, 405);
});

test('special files, directories, magic links: refused, never a hang', async () => {
  execFileSync('mkfifo', [at('fifo')]);
  refused(await put(at('fifo'), 'x'), 400, /not a regular file/);
  refused(await get(at('fifo')), 400, /not a regular file/);
  refused(await put('/dev/full', 'x'), 400, /not a regular file/);
  refused(await get('/dev/zero'), 400, /not a regular file/);
  refused(await put(box, 'x'), 400, /^path is a directory: /);
  refused(await get(box), 400, /^path '.*' is a directory$/);
  fs.symlinkSync('/proc/self/fd/0', at('magic'));
  refused(await put('/proc/self/fd/1', 'x'), 400);
  refused(await get('/proc/self/exe'), 400, /only the kernel/);
  refused(await put(at('put', 'below-a-file'), 'x'), 400, /not a directory/);
  refused(await put(at('n'.repeat(256)), 'x'), 400, /File name too long/);
});

test('symbolic links: followed, also to nothing', async () => {
  fs.mkdirSync(at('real'));
  fs.symlinkSync(at('real'), at('dirlink'));
  fs.symlinkSync('real/target', at('dangling'));
  fs.symlinkSync(at('loop'), at('loop'));
  assert.equal((await put(at('dirlink', 'new', 'f'), 'via link')).status, 200);
  assert.equal(fs.readFileSync(at('real', 'new', 'f'), 'utf8'), 'via link');
  assert.equal((await put(at('dangling'), 'made')).status, 200);
  assert.equal(fs.readFileSync(at('real', 'target'), 'utf8'), 'made');
  assert.ok(fs.lstatSync(at('dangling')).isSymbolicLink());
  refused(await put(at('loop'), 'x'), 400);
});

test('metadata: stored, returned, replaced, checked', async () => {
  const res = await put(at('meta'), 'x', { 'X-Metadata-Author': 'Ann', 'x-metadata-k2': 'v 2' });
  assert.deepEqual(json(res)[0].metadata, { author: 'Ann', k2: 'v 2' });
  assert.deepEqual((await rpc('Stat', { path: at('meta') })).entry.metadata, { author: 'Ann', k2: 'v 2' });
  await put(at('meta'), 'x', { 'x-metadata-k3': 'c' });
  assert.deepEqual((await rpc('Stat', { path: at('meta') })).entry.metadata, { k3: 'c' });
  const listed = (await rpc('ListDir', { path: box })).entries.find((e) => e.name === 'meta');
  assert.deepEqual(listed.metadata, { k3: 'c' });
  const moved = await rpc('Move', { source: at('meta'), destination: at('meta2') });
  assert.deepEqual(moved.entry.metadata, { k3: 'c' });
  await put(at('meta2'), 'y');
  assert.equal((await rpc('Stat', { path: at('meta2') })).entry.metadata, undefined);
  assert.equal((await put(at('meta'), 'x', { ['x-metadata-' + 'k'.repeat(246)]: 'v' })).status, 200);
  refused(await put(at('meta'), 'x', { ['x-metadata-' + 'k'.repeat(247)]: 'v' }), 400, /^invalid metadata: /);
  refused(await put(at('meta'), 'x', { 'x-metadata-k': '\xe9' }), 400, /^invalid metadata: /);
  refused(await put(at('meta'), 'x', { 'x-metadata-k': 'v'.repeat(4096) }), 400, /^invalid metadata: /);
});

test('a full disk: 507 before and during', async () => {
  const disk = at('small');
  fs.mkdirSync(disk);
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=2m', 'tmpfs', disk]);
  try {
    fs.writeFileSync(path.join(disk, 'keep'), 'precious');
    const body = crypto.randomBytes(6 << 20);
    const before = await put(path.join(disk, 'keep'), body);
    refused(before, 507, /^not enough disk space available/);
    assert.equal(fs.readFileSync(path.join(disk, 'keep'), 'utf8'), 'precious', 'refused before the old content was touched');
    const during = await put(path.join(disk, 'big'), body, { 'transfer-encoding': 'chunked' });
    refused(during, 507, /^not enough disk space available$/);
    assert.ok(!fs.existsSync(path.join(disk, 'big')), 'the part is taken away');
    assert.equal((await put(path.join(disk, 'ok'), 'fits')).status, 200);
    const joined = await envd.request('POST', '/files/compose', { body: JSON.stringify({ source_paths: [at(`size-${(5 << 20) + 3}`)], destination: path.join(disk, 'joined'), username: 'root' }) });
    refused(joined, 507, /^not enough disk space available$/);
    assert.deepEqual(fs.readdirSync(disk).sort(), ['keep', 'ok']);
  } finally {
    execFileSync('umount', [disk]);
  }
});

test('a client that goes away: no new file stays', async () => {
  await new Promise((resolve) => {
    const req = http.request({ host: '127.0.0.1', port, method: 'POST', path: q({ path: at('gone'), username: 'root' }), headers: { 'content-type': 'application/octet-stream', 'content-length': 10000000 } });
    req.on('error', resolve);
    req.write(crypto.randomBytes(3000000), () => setTimeout(() => req.destroy(), 100));
  });
  for (let i = 0; i < 50 && fs.existsSync(at('gone')); i++) await sleep(20);
  assert.ok(!fs.existsSync(at('gone')));
});

test('strange names survive', async () => {
  for (const name of ['new\nline', 'quo"te', "a'b", 'back\\slash', ' spaces ', 'tab\t', '%41', '+plus', 'ü-é-漢字', 'n'.repeat(255), '-rf', '#?&=;', '..hidden', 'cr\rlf\n']) {
    assert.equal((await put(at('names', name), name)).status, 200, JSON.stringify(name));
    assert.equal(fs.readFileSync(at('names', name), 'utf8'), name);
    assert.equal((await get(at('names', name))).body.toString(), name);
    assert.equal((await rpc('Stat', { path: at('names', name) })).entry.name, name);
  }
  const listed = (await rpc('ListDir', { path: at('names') })).entries.map((e) => e.name);
  assert.deepEqual(listed.slice().sort(), fs.readdirSync(at('names')).sort());
  // A form encodes them the way browsers do.
  const res = await post(form(part('file', at('names', 'form%0Aname%22'), 'x')));
  assert.equal(json(res)[0].name, 'form\nname"');
});

test('names that are not UTF-8: base64 beside replacement characters', async () => {
  const name = Buffer.from([0x61, 0xff, 0xfe, 0x62]);
  const full = Buffer.concat([Buffer.from(at('names') + '/'), name]);
  const res = await envd.request('POST', `/files?username=root&path=${encodeURIComponent(at('names'))}/a%ff%feb`, { headers: { 'content-type': 'application/octet-stream' }, body: 'bytes' });
  assert.equal(res.status, 200);
  assert.equal(json(res)[0].nameBase64, name.toString('base64'));
  assert.equal(fs.readFileSync(full, 'utf8'), 'bytes');
  const entry = (await rpc('ListDir', { path: at('names') })).entries.find((e) => e.nameBase64);
  assert.equal(entry.name, 'a\ufffd\ufffdb');
  assert.equal(entry.pathBase64, full.toString('base64'));
  assert.equal((await rpc('Stat', { pathBase64: entry.pathBase64 })).entry.size, '5');
  await rpc('Move', { sourceBase64: entry.pathBase64, destination: at('names', 'renamed') });
  assert.equal(fs.readFileSync(at('names', 'renamed'), 'utf8'), 'bytes');
});

test('bad queries', async () => {
  refused(await envd.request('GET', '/files?path=%00&username=root'), 400, /NUL/);
  refused(await envd.request('GET', '/files?path=%zz&username=root'), 400, /malformed/);
  refused(await get('/' + 'd/'.repeat(3000)), 400, /longer than/);
  refused(await get('~nobody/x'), 400, /cannot expand user-specific home dir/);
  refused(await get('/x', {}, { username: 'no-such-user' }), 401, /^error looking up user 'no-such-user': /);
  refused(await get(at('missing')), 404, new RegExp(`^path '${at('missing')}' does not exist$`));
  assert.equal((await get(at('names', '..', 'put'))).body.toString(), 'hello');
  assert.equal((await get('/../../..' + at('put'))).body.toString(), 'hello');
});

// ---- GET ----

test('headers, conditions and ranges', async () => {
  fs.writeFileSync(at('r.txt'), '0123456789');
  fs.utimesSync(at('r.txt'), 1700000000, 1700000000);
  const full = await get(at('r.txt'));
  assert.equal(full.headers['content-type'], 'text/plain; charset=utf-8');
  assert.equal(full.headers['content-disposition'], 'inline; filename=r.txt');
  assert.equal(full.headers['last-modified'], 'Tue, 14 Nov 2023 22:13:20 GMT');
  assert.equal(full.headers['accept-ranges'], 'bytes');
  assert.equal(full.headers.vary, 'Accept-Encoding');
  const etag = full.headers.etag;
  const cases = [
    ['bytes=0-3', '0123', 'bytes 0-3/10'],
    ['bytes=7-', '789', 'bytes 7-9/10'],
    ['bytes=-4', '6789', 'bytes 6-9/10'],
    ['bytes=-99', '0123456789', 'bytes 0-9/10'],
    ['bytes=9-99', '9', 'bytes 9-9/10'],
  ];
  for (const [range, want, header] of cases) {
    const r = await get(at('r.txt'), { range });
    assert.equal(r.status, 206, range);
    assert.equal(r.body.toString(), want);
    assert.equal(r.headers['content-range'], header);
  }
  for (const range of ['bytes=0-1,3-4', 'lines=1-2', 'bytes=x', 'bytes=5-2', 'bytes=-']) assert.equal((await get(at('r.txt'), { range })).body.toString(), '0123456789', range);
  for (const range of ['bytes=10-', 'bytes=99-100', 'bytes=-0']) {
    const r = await get(at('r.txt'), { range });
    refused(r, 416);
    assert.equal(r.headers['content-range'], 'bytes */10');
  }
  assert.equal((await get(at('r.txt'), { 'if-none-match': etag })).status, 304);
  assert.equal((await get(at('r.txt'), { 'if-none-match': `"x", W/${etag}` })).status, 304);
  assert.equal((await get(at('r.txt'), { 'if-none-match': '"x"', 'if-modified-since': full.headers['last-modified'] })).status, 200);
  assert.equal((await get(at('r.txt'), { 'if-modified-since': full.headers['last-modified'] })).status, 304);
  assert.equal((await get(at('r.txt'), { 'if-modified-since': 'Tue, 14 Nov 2023 22:13:19 GMT' })).status, 200);
  assert.equal((await get(at('r.txt'), { range: 'bytes=0-0', 'if-range': etag })).status, 206);
  assert.equal((await get(at('r.txt'), { range: 'bytes=0-0', 'if-range': '"old"' })).status, 200);
  const big = crypto.randomBytes(3 << 20);
  fs.writeFileSync(at('big.bin'), big);
  const r = await get(at('big.bin'), { range: 'bytes=300000-2000000', 'accept-encoding': 'gzip' });
  assert.equal(r.headers['content-encoding'], undefined);
  assert.ok(r.body.equals(big.subarray(300000, 2000001)));
});

test('content types and dispositions', async () => {
  const png = Buffer.from('89504e470d0a1a0a', 'hex');
  for (const [name, content, type, disposition] of [
    ['t.html', '', 'text/html; charset=utf-8', 'inline; filename=t.html'],
    ['t.JSON', '{}', 'application/json', 'inline; filename=t.JSON'],
    ['noext', png, 'image/png', 'inline; filename=noext'],
    ['bin', Buffer.from([0, 1, 2]), 'application/octet-stream', 'inline; filename=bin'],
    ['a b"c', 'text', 'text/plain; charset=utf-8', 'inline; filename="a b\\"c"'],
    ['ü\n', 'text', 'text/plain; charset=utf-8', "inline; filename*=utf-8''%C3%BC%0A"],
  ]) {
    fs.writeFileSync(at(name), content);
    const r = await get(at(name));
    assert.equal(r.headers['content-type'], type, name);
    assert.equal(r.headers['content-disposition'], disposition);
    const part = content.length ? await get(at(name), { range: 'bytes=0-0' }) : r;
    assert.equal(part.headers['content-type'], type, name);
  }
});

test('empty files have Content-Length 0', async () => {
  fs.writeFileSync(at('e'), '');
  for (const enc of ['gzip', 'gzip, deflate', 'identity']) {
    const r = await get(at('e'), { 'accept-encoding': enc });
    assert.equal(r.status, 200);
    assert.equal(r.headers['content-length'], '0');
    assert.equal(r.headers['content-encoding'], undefined);
  }
});

test('gzip answers', async () => {
  const text = Buffer.from('compressible '.repeat(200000));
  fs.writeFileSync(at('c.txt'), text);
  const gz = await get(at('c.txt'), { 'accept-encoding': 'gzip' });
  assert.equal(gz.headers['content-encoding'], 'gzip');
  assert.equal(gz.headers['content-type'], 'text/plain; charset=utf-8');
  assert.ok(zlib.gunzipSync(gz.body).equals(text));
  assert.ok(gz.body.length < text.length / 10);
  const fetchLike = await get(at('c.txt'), { 'accept-encoding': 'gzip, deflate' });
  assert.equal(fetchLike.headers['content-encoding'], 'gzip');
  assert.ok(zlib.gunzipSync(fetchLike.body).equals(text));
  const noise = await get(at('big.bin'), { 'accept-encoding': 'gzip, deflate' });
  assert.equal(noise.headers['content-encoding'], undefined, 'what does not shrink is sent as it is');
  fs.writeFileSync(at('c5.txt'), Buffer.alloc((4 << 20) + 1, 'a'));
  assert.equal((await get(at('c5.txt'), { 'accept-encoding': 'gzip, deflate' })).headers['content-encoding'], undefined, 'large files go as they are');
  const forced = await get(at('big.bin'), { 'accept-encoding': 'gzip' });
  assert.ok(zlib.gunzipSync(forced.body).equals(fs.readFileSync(at('big.bin'))));
  assert.equal((await get(at('c.txt'), { 'accept-encoding': 'gzip;q=0' })).headers['content-encoding'], undefined);
  assert.equal((await get(at('c.txt'), { 'accept-encoding': 'identity;q=0' })).status, 406);
  assert.equal((await get(at('c.txt'), { 'accept-encoding': '*;q=0' })).status, 406);
  assert.equal((await get(at('c.txt'), { 'accept-encoding': 'identity;q=0, *' })).headers['content-encoding'], 'gzip');
});

test('procfs and sysfs files have their content', async () => {
  const status = await get('/proc/self/status');
  assert.match(status.body.toString(), /^Name:\tholdfast-envd/);
  assert.equal((await get('/proc/kallsyms')).body.length, fs.readFileSync('/proc/kallsyms').length);
  const sys = fs.readdirSync('/sys/kernel').find((f) => fs.statSync(`/sys/kernel/${f}`).isFile() && f === 'notes') ?? 'profiling';
  const direct = fs.readFileSync(`/sys/kernel/${sys}`);
  const got = await get(`/sys/kernel/${sys}`);
  assert.ok(got.body.equals(direct));
  assert.equal((await get('/proc/version', { range: 'bytes=0-4' })).body.toString(), 'Linux');
});

test('a slow reader: the daemon neither buffers nor blocks', async () => {
  const size = 64 << 20;
  execFileSync('truncate', ['-s', String(size), at('huge')]);
  const rss = () => Number(/VmRSS:\s+(\d+)/.exec(fs.readFileSync(`/proc/${child.pid}/status`, 'utf8'))[1]);
  const base = rss();
  const reqs = [];
  for (let i = 0; i < 20; i++)
    reqs.push(await new Promise((resolve) => http.get({ host: '127.0.0.1', port, path: q({ path: at('huge'), username: 'root' }) }, (res) => resolve(res.pause()))));
  await sleep(300);
  const sanitized = fs.readFileSync(`/proc/${child.pid}/maps`, 'utf8').includes('asan');
  if (!sanitized) assert.ok(rss() - base < 40 * 1024, `${rss() - base} KiB more for 20 stuck readers`);
  const t0 = Date.now();
  assert.equal((await rpc('Stat', { path: at('huge') })).entry.size, String(size));
  assert.ok(Date.now() - t0 < 200);
  let n = 0;
  await new Promise((r) => reqs[0].on('data', (d) => (n += d.length)).on('end', r).resume());
  assert.equal(n, size);
  for (const r of reqs) r.destroy();
});

test('a file that shrinks while it is read: the connection breaks, the body is not padded', async () => {
  execFileSync('truncate', ['-s', String(200 << 20), at('shrink')]);
  await assert.rejects(
    new Promise((resolve, reject) =>
      http.get({ host: '127.0.0.1', port, path: q({ path: at('shrink'), username: 'root' }) }, (res) => {
        fs.truncateSync(at('shrink'), 10);
        res.resume().on('end', resolve).on('error', reject);
      }).on('error', reject),
    ),
  );
});

// ---- compose ----

test('compose joins, removes the sources and refuses nonsense', async () => {
  const parts = [crypto.randomBytes(300000), Buffer.alloc(0), crypto.randomBytes(70001)];
  parts.forEach((p, i) => fs.writeFileSync(at(`part${i}`), p));
  const compose = (msg) => envd.request('POST', '/files/compose', { headers: { 'content-type': 'application/json' }, body: typeof msg === 'string' ? msg : JSON.stringify(msg) });
  const names = parts.map((_, i) => at(`part${i}`));
  const res = await compose({ source_paths: names, destination: at('joined', 'deep', 'f'), username: 'nobody' });
  assert.deepEqual(json(res), { path: at('joined', 'deep', 'f'), name: 'f', type: 'file' });
  assert.ok(fs.readFileSync(at('joined', 'deep', 'f')).equals(Buffer.concat(parts)));
  assert.equal(fs.statSync(at('joined', 'deep', 'f')).uid, id('nobody'));
  for (const n of names) assert.ok(!fs.existsSync(n));
  refused(await compose('{'), 400, /^invalid request body: /);
  refused(await compose({ source_paths: [], destination: '/x' }), 400, /^source_paths must not be empty$/);
  refused(await compose({ source_paths: ['/x'] }), 400, /^destination is required$/);
  refused(await compose({ source_paths: [at('no')], destination: at('d'), username: 'root' }), 404, /^source file not found: /);
  refused(await compose({ source_paths: [box], destination: at('d'), username: 'root' }), 400, /^source path is not a regular file: /);
  refused(await compose({ source_paths: [at('e')], destination: at('e'), username: 'root' }), 400, /cannot be the same as destination/);
  refused(await compose({ source_paths: ['/x'], destination: '/y', username: 'zz' }), 401);
  refused(await compose({ source_paths: ['/x', 1], destination: '/y', username: 'root' }), 400, /list of texts/);
  refused(await compose({ source_paths: Array(5000).fill('/x'), destination: '/y', username: 'root' }), 400, /at most 4096/);
  refused(await compose('"' + 'x'.repeat(1 << 20) + '"'), 413);
  refused(await compose({ source_paths: [at('e')], destination: box, username: 'root' }), 400, /directory/);
  assert.ok(fs.existsSync(at('e')));
  assert.ok(!fs.readdirSync(path.dirname(box)).some((n) => n.startsWith('.holdfast-compose')));
});

// ---- filesystem.Filesystem ----

test('Stat: files, directories, links', async () => {
  fs.writeFileSync(at('s'), 'four');
  fs.chmodSync(at('s'), 0o640);
  fs.utimesSync(at('s'), 1700000000, 1700000000.25);
  const { entry } = await rpc('Stat', { path: at('s') });
  assert.deepEqual(entry, {
    name: 's', type: 'FILE_TYPE_FILE', mode: 0o640, path: at('s'), size: '4', permissions: '-rw-r-----', owner: 'root', group: 'root',
    modifiedTime: '2023-11-14T22:13:20.250000000Z',
  });
  fs.chmodSync(at('real'), 0o1777);
  const d = (await rpc('Stat', { path: at('real') })).entry;
  assert.equal(d.type, 'FILE_TYPE_DIRECTORY');
  assert.equal(d.permissions, 'dtrwxrwxrwx');
  fs.symlinkSync('s', at('ln'));
  const l = (await rpc('Stat', { path: at('ln') })).entry;
  assert.equal(l.type, 'FILE_TYPE_FILE');
  assert.equal(l.mode, 0o640);
  assert.equal(l.permissions, 'Lrwxrwxrwx');
  assert.equal(l.symlinkTarget, at('s'));
  fs.symlinkSync('nothing', at('broken'));
  const b = (await rpc('Stat', { path: at('broken') })).entry;
  assert.equal(b.type, undefined);
  assert.equal(b.mode, 0);
  assert.equal(b.symlinkTarget, at('broken'));
  const f = (await rpc('Stat', { path: at('fifo') })).entry;
  assert.equal(f.type, undefined);
  assert.equal(f.permissions, 'prw-r--r--');
  assert.equal((await rpc('Stat', { path: '/dev/null' })).entry.permissions, 'Dcrw-rw-rw-');
  assert.equal((await rpc('Stat', { path: '/' })).entry.name, '/');
  await fails(rpc('Stat', { path: at('zz') }), 'not_found', /^file not found: /);
  await fails(rpc('Stat', { path: at('s', 'below') }), 'not_found');
  await fails(rpc('Stat', { path: at('s') }, { user: 'nouser' }), 'unauthenticated', /^invalid username: 'nouser'$/);
  await fails(rpc('Stat', { path: '/' + 'x/'.repeat(3000) }), 'invalid_argument');
});

test('the binary codec', async () => {
  const p = Buffer.from(at('s'));
  const res = await envd.request('POST', '/filesystem.Filesystem/Stat', {
    headers: { 'content-type': 'application/proto', authorization: basic('root') },
    body: Buffer.concat([Buffer.from([0x0a, p.length]), p]),
  });
  assert.equal(res.status, 200);
  assert.ok(res.body.includes(Buffer.from('-rw-r-----')));
  const dirp = Buffer.from(at('names'));
  const list = await envd.request('POST', '/filesystem.Filesystem/ListDir', {
    headers: { 'content-type': 'application/proto', authorization: basic('root') },
    body: Buffer.concat([Buffer.from([0x0a, dirp.length]), dirp]),
  });
  let n = 0;
  for (let pos = 0; pos < list.body.length; n++) {
    assert.equal(list.body[pos++], 0x0a);
    let len = 0;
    for (let shift = 0; ; shift += 7) {
      const c = list.body[pos++];
      len |= (c & 0x7f) << shift;
      if (c < 0x80) break;
    }
    pos += len;
  }
  assert.equal(n, fs.readdirSync(at('names')).length);
});

test('MakeDir', async () => {
  const { entry } = await rpc('MakeDir', { path: at('mk', 'a', 'b') }, { user: 'nobody' });
  assert.equal(entry.path, at('mk', 'a', 'b'));
  assert.equal(entry.type, 'FILE_TYPE_DIRECTORY');
  assert.equal(entry.owner, 'nobody');
  assert.equal(fs.statSync(at('mk')).uid, id('nobody'));
  await fails(rpc('MakeDir', { path: at('mk', 'a') }), 'already_exists', new RegExp(`^directory already exists: ${at('mk', 'a')}$`));
  await fails(rpc('MakeDir', { path: at('s') }), 'invalid_argument', /^path already exists but it is not a directory: /);
  await fails(rpc('MakeDir', { path: at('s', 'x') }), 'invalid_argument');
});

test('Move', async () => {
  fs.writeFileSync(at('mv1'), 'one');
  const { entry } = await rpc('Move', { source: at('mv1'), destination: at('mvd', 'x', 'two') });
  assert.equal(entry.path, at('mvd', 'x', 'two'));
  fs.writeFileSync(at('mv3'), 'three');
  await rpc('Move', { source: at('mv3'), destination: at('mvd', 'x', 'two') });
  assert.equal(fs.readFileSync(at('mvd', 'x', 'two'), 'utf8'), 'three');
  await fails(rpc('Move', { source: at('nope'), destination: at('never', 'x') }), 'not_found', /^source file not found: /);
  assert.ok(!fs.existsSync(at('never')));
  await fails(rpc('Move', { source: at('mvd'), destination: at('mvd', 'x', 'in') }), 'invalid_argument');
});

test('Move to another file system keeps everything', async () => {
  const disk = at('other');
  fs.mkdirSync(disk);
  execFileSync('mount', ['-t', 'tmpfs', 'tmpfs', disk]);
  try {
    const t = at('tree');
    fs.mkdirSync(path.join(t, 'a', 'empty'), { recursive: true });
    fs.writeFileSync(path.join(t, 'a', 'f'), crypto.randomBytes(500000));
    fs.chmodSync(path.join(t, 'a', 'f'), 0o4711);
    fs.chownSync(path.join(t, 'a'), id('nobody'), 0);
    fs.symlinkSync('a/f', path.join(t, 'link'));
    execFileSync('mkfifo', [path.join(t, 'pipe')]);
    fs.utimesSync(path.join(t, 'a'), 1600000000, 1600000000);
    const shape = (d) => execFileSync('find', ['.', '-printf', '%p %y %m %u %s %l\n'], { cwd: d }).toString().split('\n').filter((l) => !/^\S+ d /.test(l)).sort().join('\n');
    const before = shape(t), sum = crypto.createHash('sha256').update(fs.readFileSync(path.join(t, 'a', 'f'))).digest('hex');
    const res = await rpc('Move', { source: t, destination: path.join(disk, 'moved') });
    assert.equal(res.entry.type, 'FILE_TYPE_DIRECTORY');
    assert.ok(!fs.existsSync(t));
    assert.equal(shape(path.join(disk, 'moved')), before);
    assert.equal(crypto.createHash('sha256').update(fs.readFileSync(path.join(disk, 'moved', 'a', 'f'))).digest('hex'), sum);
    assert.equal(fs.statSync(path.join(disk, 'moved', 'a')).mtimeMs, 1600000000000);
    assert.equal(fs.statSync(path.join(disk, 'moved', 'a')).uid, id('nobody'));
    fs.writeFileSync(at('over'), 'new');
    fs.writeFileSync(path.join(disk, 'target'), 'old');
    await rpc('Move', { source: at('over'), destination: path.join(disk, 'target') });
    assert.equal(fs.readFileSync(path.join(disk, 'target'), 'utf8'), 'new');
    fs.mkdirSync(at('d1'));
    await fails(rpc('Move', { source: at('d1'), destination: path.join(disk, 'moved') }), 'failed_precondition');
    assert.ok(fs.existsSync(at('d1')));
    assert.deepEqual(fs.readdirSync(disk).sort(), ['moved', 'target']);
  } finally {
    execFileSync('umount', [disk]);
  }
});

test('ListDir: order, depth, links', async () => {
  for (const f of ['l/file1', 'l/subdir1/subdir1_1/deep', 'l/subdir1/file', 'l/subdir2/x']) {
    fs.mkdirSync(path.dirname(at(f)), { recursive: true });
    fs.writeFileSync(at(f), '');
  }
  fs.symlinkSync('subdir1', at('l/zlink'));
  fs.symlinkSync(at('l'), at('llink'));
  const names = async (p, depth) => (await rpc('ListDir', { path: p, depth })).entries.map((e) => e.path.slice(p.length + 1));
  assert.deepEqual(await names(at('l'), 0), ['file1', 'subdir1', 'subdir2', 'zlink']);
  assert.deepEqual(await names(at('l'), 1), ['file1', 'subdir1', 'subdir2', 'zlink']);
  assert.deepEqual(await names(at('l'), 2), ['file1', 'subdir1', 'subdir1/file', 'subdir1/subdir1_1', 'subdir2', 'subdir2/x', 'zlink']);
  assert.deepEqual(await names(at('llink'), 9), ['file1', 'subdir1', 'subdir1/file', 'subdir1/subdir1_1', 'subdir1/subdir1_1/deep', 'subdir2', 'subdir2/x', 'zlink']);
  const link = (await rpc('ListDir', { path: at('llink'), depth: 1 })).entries.at(-1);
  assert.equal(link.type, 'FILE_TYPE_DIRECTORY');
  assert.equal(link.symlinkTarget, at('l/subdir1'));
  assert.ok((await rpc('ListDir', { path: '/' })).entries.some((e) => e.path === '/etc'));
  fs.mkdirSync(at('nothing-in-it'));
  assert.deepEqual((await rpc('ListDir', { path: at('nothing-in-it') })).entries ?? [], []);
  await fails(rpc('ListDir', { path: at('zzz') }), 'not_found', /^path not found: /);
  await fails(rpc('ListDir', { path: at('s') }), 'invalid_argument', /^path is not a directory: /);
  await fails(rpc('ListDir', { path: at('loop') }), 'failed_precondition', /cyclic symlink/);
});

test('100,000 entries: listed and removed, the daemon stays awake', async () => {
  const many = at('many');
  fs.mkdirSync(many);
  for (let i = 0; i < 100000; i++) fs.closeSync(fs.openSync(path.join(many, `file-${i}`), 'w'));
  let worst = 0, on = true;
  const pings = (async () => {
    while (on) {
      const t = Date.now();
      await envd.request('GET', '/health');
      worst = Math.max(worst, Date.now() - t);
      await sleep(5);
    }
  })();
  const t0 = Date.now();
  const { entries } = await rpc('ListDir', { path: many });
  const t1 = Date.now();
  assert.equal(entries.length, 100000);
  assert.equal(entries[0].name, 'file-0');
  await rpc('Remove', { path: many });
  const t2 = Date.now();
  on = false;
  await pings;
  assert.ok(!fs.existsSync(many));
  console.log(`     list ${t1 - t0} ms, remove ${t2 - t1} ms, slowest health check ${worst} ms`);
});

test('Remove: trees of any depth, links, nothing', async () => {
  // 20,000 levels, made by a helper that changes directory as it goes: the path is far longer than PATH_MAX.
  execFileSync('python3', ['-c', `
import os
os.chdir(${JSON.stringify(box)}); os.mkdir('deep'); os.chdir('deep')
for i in range(20000):
    os.mkdir('d'); open('f','w').close(); os.chdir('d')
`]);
  await fails(rpc('ListDir', { path: at('deep'), depth: 4000000000 }), 'resource_exhausted', /smaller depth/);
  await rpc('Remove', { path: at('deep') });
  assert.ok(!fs.existsSync(at('deep')));
  fs.symlinkSync(at('l'), at('rmlink'));
  await rpc('Remove', { path: at('rmlink') });
  assert.ok(fs.existsSync(at('l/file1')));
  await rpc('Remove', { path: at('l') });
  assert.ok(!fs.existsSync(at('l')));
  await rpc('Remove', { path: at('l') });
  await rpc('Remove', { path: at('s') });
  assert.ok(!fs.existsSync(at('s')));
  await fails(rpc('Remove', { path: '/' }), 'invalid_argument');
});

// ---- watchers ----

test('WatchDir: create, write, chmod, rename, remove', async () => {
  fs.mkdirSync(at('w'));
  const s = await watchDir({ path: at('w') });
  fs.writeFileSync(at('w/f'), 'x');
  await eventsUntil(s, is('f', 'CREATE'));
  await eventsUntil(s, is('f', 'WRITE'));
  fs.chmodSync(at('w/f'), 0o600);
  await eventsUntil(s, is('f', 'CHMOD'));
  fs.renameSync(at('w/f'), at('w/g'));
  const seen = await eventsUntil(s, is('g', 'CREATE'));
  assert.ok(seen.some(is('f', 'RENAME')));
  fs.unlinkSync(at('w/g'));
  await eventsUntil(s, is('g', 'REMOVE'));
  fs.mkdirSync(at('w/sub'));
  await eventsUntil(s, is('sub', 'CREATE'));
  fs.writeFileSync(at('w/sub/unseen'), 'x');
  fs.writeFileSync(at('w/marker'), 'x');
  const rest = await eventsUntil(s, is('marker', 'CREATE'));
  assert.ok(!rest.some((e) => e.name.startsWith('sub/')));
  s.close();
});

test('WatchDir recursive: new directories, at once, without doubles', async () => {
  fs.mkdirSync(at('wr/old/er'), { recursive: true });
  const s = await watchDir({ path: at('wr'), recursive: true });
  fs.writeFileSync(at('wr/old/er/f'), 'x');
  await eventsUntil(s, is('old/er/f', 'WRITE'));
  for (let i = 0; i < 30; i++) {
    fs.mkdirSync(at(`wr/n${i}/a/b`), { recursive: true });
    fs.writeFileSync(at(`wr/n${i}/a/b/file`), 'content');
  }
  fs.writeFileSync(at('wr/end'), '');
  const seen = [], want = new Set();
  for (let i = 0; i < 30; i++) for (const n of [`n${i}`, `n${i}/a`, `n${i}/a/b`, `n${i}/a/b/file`]) want.add(n);
  const wrote = new Set();
  while (want.size || wrote.size < 30) {
    const e = (await s.next(5000)).msg.filesystem;
    seen.push(e);
    if (e.type === 'EVENT_TYPE_CREATE') want.delete(e.name);
    if (e.type === 'EVENT_TYPE_WRITE' && e.name.endsWith('/file')) wrote.add(e.name);
  }
  await sleep(200);
  while (s.queue.length) seen.push(s.queue.shift().msg.filesystem);
  const created = seen.filter((e) => e.type === 'EVENT_TYPE_CREATE').map((e) => e.name);
  assert.equal(created.length, new Set(created).size, 'doubles: ' + created.filter((n, i) => created.indexOf(n) !== i));
  fs.renameSync(at('wr/n1'), at('wr/m1'));
  await eventsUntil(s, is('m1/a/b/file', 'CREATE'));
  fs.writeFileSync(at('wr/m1/a/b/later'), 'x');
  await eventsUntil(s, is('m1/a/b/later', 'CREATE'));
  fs.rmSync(at('wr/n2'), { recursive: true });
  await eventsUntil(s, is('n2', 'REMOVE'));
  fs.mkdirSync(at('wr/n2'));
  await eventsUntil(s, is('n2', 'CREATE'));
  fs.writeFileSync(at('wr/n2/again'), 'x');
  await eventsUntil(s, is('n2/again', 'WRITE'));
  s.close();
});

test('WatchDir: entries, keepalive, errors, a removed root', async () => {
  const s = await watchDir({ path: at('w'), includeEntry: true }, { headers: { 'keepalive-ping-interval': '1' } });
  fs.writeFileSync(at('w/with-entry'), 'abc');
  const seen = await eventsUntil(s, is('with-entry', 'WRITE'));
  assert.equal(seen.at(-1).entry.path, at('w/with-entry'));
  assert.equal(seen.at(-1).entry.size, '3');
  const t0 = Date.now();
  for (let item; !(item = await s.next(3000)).msg.keepalive; ) assert.ok(item.msg.filesystem);
  assert.ok(Date.now() - t0 < 2500);
  fs.rmSync(at('w'), { recursive: true });
  await eventsUntil(s, is('.', 'REMOVE'));
  s.close();
  await fails(watchDir({ path: at('w') }), 'not_found', /^path .* not found: /);
  await fails(watchDir({ path: at('put') }), 'invalid_argument', /not a directory/);
  const ended = await watchDir({ path: at('wr') }, { headers: { 'connect-timeout-ms': '300' } });
  const last = await ended.next(3000);
  assert.equal(last.msg.error.code, 'deadline_exceeded');
});

test('closed streams give their watches back', async () => {
  const count = () => fs.readdirSync(`/proc/${child.pid}/fd`).filter((f) => {
    try { return fs.readlinkSync(`/proc/${child.pid}/fd/${f}`) === 'anon_inode:inotify'; } catch { return false; }
  }).length;
  await sleep(100);
  const before = count();
  const streams = [];
  for (let i = 0; i < 20; i++) streams.push(await watchDir({ path: at('wr'), recursive: true }));
  assert.equal(count(), before + 20);
  for (const s of streams) s.close();
  for (let i = 0; i < 50 && count() > before; i++) await sleep(20);
  assert.equal(count(), before);
});

test('polled watchers: events, overflow, removal', async () => {
  fs.mkdirSync(at('p'));
  const { watcherId } = await rpc('CreateWatcher', { path: at('p'), recursive: true });
  assert.match(watcherId, /^w[a-z0-9]+$/);
  assert.deepEqual((await rpc('GetWatcherEvents', { watcherId })).events, []);
  fs.writeFileSync(at('p/a'), 'x');
  await sleep(100);
  const { events } = await rpc('GetWatcherEvents', { watcherId });
  assert.deepEqual(events[0], { name: 'a', type: 'EVENT_TYPE_CREATE' });
  assert.ok(events.some(is('a', 'WRITE')));
  assert.deepEqual((await rpc('GetWatcherEvents', { watcherId })).events, []);
  for (let i = 0; i < 10000; i++) fs.closeSync(fs.openSync(at(`p/f${i}`), 'w'));
  await sleep(300);
  await fails(rpc('GetWatcherEvents', { watcherId }), 'data_loss', /events were dropped/);
  const kept = (await rpc('GetWatcherEvents', { watcherId })).events;
  assert.equal(kept.length, 8192);
  assert.deepEqual(kept[0], { name: 'f0', type: 'EVENT_TYPE_CREATE' });
  await rpc('RemoveWatcher', { watcherId });
  await fails(rpc('GetWatcherEvents', { watcherId }), 'not_found', new RegExp(`^watcher with id ${watcherId} not found$`));
  await fails(rpc('RemoveWatcher', { watcherId }), 'not_found');
  await fails(rpc('CreateWatcher', { path: at('zz') }), 'not_found');
});

test('network file systems are refused unless asked for', async () => {
  // No network mount can be made here without a server; FUSE has one if fusermount and a mount exist.
  const mounts = fs.readFileSync('/proc/mounts', 'utf8').split('\n').map((l) => l.split(' '));
  const fuse = mounts.find((m) => /^fuse\./.test(m[2] ?? '') || m[2] === 'nfs4');
  if (!fuse) return 'skipped: this host has no network mount';
  await fails(watchDir({ path: fuse[1] }), 'invalid_argument', /^cannot watch path on network filesystem: /);
});

// ---- who may ---- (last: it sets the token)

const token = '0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0';
const sign = (p, op, user, exp) => 'v1_' + crypto.createHash('sha256').update([p, op, user, token, ...(exp === undefined ? [] : [exp])].join(':')).digest('base64').replace(/=+$/, '');

test('tokens and signatures', async () => {
  const init = await new Promise((resolve, reject) => {
    const req = http.request({ socketPath: ctl, method: 'POST', path: '/init', headers: { 'content-type': 'application/json' } }, (res) => res.resume().on('end', () => resolve(res.statusCode)));
    req.on('error', reject);
    req.end(JSON.stringify({ accessToken: token, defaultUser: 'root', defaultWorkdir: box }));
  });
  assert.equal(init, 204);
  assert.equal(sign('hello.txt', 'read', 'user'), 'v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E');
  fs.writeFileSync(at('hello.txt'), 'hi');
  const g = (params, headers = {}) => envd.request('GET', q(params), { headers });
  refused(await g({ path: 'hello.txt' }), 401, /^missing signature query parameter$/);
  refused(await g({ path: 'hello.txt' }, { 'x-access-token': 'wrong' }), 401, /^access token present in header but does not match$/);
  assert.equal((await g({ path: 'hello.txt' }, { 'x-access-token': token })).body.toString(), 'hi');
  assert.equal((await g({ path: 'hello.txt', signature: sign('hello.txt', 'read', '') })).body.toString(), 'hi');
  assert.equal((await g({ path: 'hello.txt', username: 'root', signature: sign('hello.txt', 'read', 'root') })).body.toString(), 'hi');
  refused(await g({ path: 'hello.txt', username: 'root', signature: sign('hello.txt', 'read', '') }), 401, /^invalid signature$/);
  refused(await g({ path: 'hello.txt', signature: sign('hello.txt', 'write', '') }), 401, /^invalid signature$/);
  refused(await g({ path: 'hello.txt', signature: sign('hello.txt', 'read', '').slice(0, -1) }), 401, /^invalid signature$/);
  const soon = Math.floor(Date.now() / 1000) + 60, past = soon - 120;
  assert.equal((await g({ path: 'hello.txt', signature_expiration: soon, signature: sign('hello.txt', 'read', '', soon) })).status, 200);
  refused(await g({ path: 'hello.txt', signature_expiration: past, signature: sign('hello.txt', 'read', '', past) }), 401, /^signature is already expired$/);
  refused(await g({ path: 'hello.txt', signature_expiration: soon + 1, signature: sign('hello.txt', 'read', '', soon) }), 401, /^invalid signature$/);
  refused(await g({ path: 'hello.txt', signature_expiration: 'soon', signature: 'v1_x' }), 400);
  const up = await envd.request('POST', q({ signature: sign('', 'write', '') }), { headers: { 'content-type': 'multipart/form-data; boundary=BND' }, body: form(part('file', 'up.txt', 'signed')) });
  assert.equal(json(up)[0].path, at('up.txt'));
  refused(await envd.request('POST', q({ path: 'up.txt', signature: sign('up.txt', 'read', '') }), { headers: { 'content-type': 'application/octet-stream' }, body: 'x' }), 401, /^invalid signature$/);
  refused(await envd.request('POST', '/files/compose', { body: '{}' }), 401);
});

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
