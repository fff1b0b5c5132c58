// The L7 egress proxy against real origins: node l7_test.mjs PATH-OF-L7-HOST [name filter]
import assert from 'node:assert/strict';
import fs from 'node:fs';
import http from 'node:http';
import http2 from 'node:http2';
import nodeNet from 'node:net';
import tls from 'node:tls';
import crypto from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { Proxy, certificates, origins, run, scratch } from './net.mjs';

const id = run(fileURLToPath(import.meta.url));
const [binary, filter = ''] = process.argv.slice(2);
const dir = scratch();
certificates(binary, dir);
const caDir = `${dir}/tenant`;
fs.mkdirSync(caDir);
const { execFileSync } = await import('node:child_process');
execFileSync(binary, ['--ca', caDir]);
const tenantCa = fs.readFileSync(`${caDir}/ca.pem`, 'utf8');
const tenantKey = fs.readFileSync(`${caDir}/ca.key`, 'utf8');
const originCa = fs.readFileSync(`${dir}/ca.pem`, 'utf8');
const net = await origins(id, dir);
const proxy = new Proxy(binary, `${dir}/ca.pem`);
const sleep = (ms) => new Promise((r) => setTimeout(r, ms));
const SECRET = 'sk-value-that-nobody-may-see';
const A = '127.0.0.2'; // the box of most tests
const API = '203.0.113.10';

const tenant = (secrets = { key: SECRET }) => proxy.tell({
  do: 'tenant', name: 'acme', secrets, ca_cert: tenantCa, ca_key: tenantKey,
});
const learn = (name, addr, learned = true) => proxy.tell({ do: 'name', name, addr, learned });

// ---- clients ----

const ended = (s, ms = 5000) => new Promise((resolve) => {
  const parts = [];
  let error = null;
  if (s.destroyed) return resolve({ how: s.errored?.code ?? 'close', text: '' });
  const timer = setTimeout(() => done('timeout'), ms);
  const done = (how) => {
    clearTimeout(timer);
    resolve({ how, error, text: Buffer.concat(parts).toString('latin1') });
  };
  s.on('data', (d) => parts.push(d));
  s.on('error', (e) => { error = e.code; });
  s.on('end', () => done('end'));
  s.on('close', () => done(error ?? 'close'));
});

// Sends bytes, gives back everything until the other side's end (or 400 ms of silence).
async function talk(from, addr, port, bytes, quiet = 400) {
  const s = await proxy.connect(from, addr, port);
  const parts = [];
  let how = 'open';
  let timer;
  const over = new Promise((resolve) => {
    const again = () => {
      clearTimeout(timer);
      timer = setTimeout(resolve, quiet);
    };
    again();
    s.on('data', (d) => { parts.push(d); again(); });
    s.on('error', (e) => { how = e.code; resolve(); });
    s.on('end', () => { how = how === 'open' ? 'end' : how; resolve(); });
  });
  for (const b of [bytes].flat()) {
    s.write(b, 'latin1');
    if (Array.isArray(bytes)) await sleep(30);
  }
  await over;
  clearTimeout(timer);
  s.destroy();
  return { how, text: Buffer.concat(parts).toString('latin1') };
}

// A TLS session of the box; resolves when it is up, rejects with the error.
async function secure(from, addr, { port = 443, servername = 'api.test', ca = tenantCa, alpn = ['http/1.1'], verify = true } = {}) {
  const socket = await proxy.connect(from, addr, port);
  return new Promise((resolve, reject) => {
    const t = tls.connect({ socket, servername, ca, ALPNProtocols: alpn, rejectUnauthorized: verify }, () => resolve(t));
    t.on('error', reject);
    socket.on('error', reject);
    socket.on('close', () => reject(new Error('closed')));
  });
}

const request = (host, path = '/', more = '', method = 'GET') => `${method} ${path} HTTP/1.1\r\nHost: ${host}\r\n${more}\r\n`;

// One answer of HTTP/1.1 with Content-Length or chunks.
function parse(text) {
  const at = text.indexOf('\r\n\r\n');
  const head = text.slice(0, at);
  let body = text.slice(at + 4);
  if (/transfer-encoding: chunked/i.test(head)) body = body.replace(/(^|\r\n)[0-9a-f]+\r\n/g, '').replace(/\r\n$/, '');
  let json = null;
  try { json = JSON.parse(body); } catch { /* not every answer is JSON */ }
  return { status: Number(text.slice(9, 12)), head, body, json };
}

async function ask(t, text) {
  const got = new Promise((resolve) => {
    let all = '';
    const more = (d) => {
      all += d.toString('latin1');
      const at = all.indexOf('\r\n\r\n');
      if (at < 0) return;
      const n = /content-length: (\d+)/i.exec(all.slice(0, at));
      const over = n ? all.length >= at + 4 + Number(n[1]) : /\r\n0\r\n\r\n$/.test(all);
      if (over) resolve(all);
    };
    t.on('data', more);
    t.on('close', () => resolve(all));
    t.on('error', () => resolve(all));
  });
  t.write(text, 'latin1');
  const all = await got;
  t.removeAllListeners('data');
  return parse(all);
}

async function https(from, addr, text, options = {}) {
  const t = await secure(from, addr, options);
  const a = await ask(t, text);
  t.destroy();
  return a;
}

async function h2(from, addr, headers, { body, ...options } = {}) {
  const t = await secure(from, addr, { alpn: ['h2'], ...options });
  assert.equal(t.alpnProtocol, 'h2');
  const session = http2.connect('https://api.test', { createConnection: () => t });
  const r = session.request({ ':path': '/', ...headers }, { endStream: body === undefined });
  if (body !== undefined) r.end(body);
  const out = { body: '', trailers: {} };
  r.setEncoding('utf8');
  r.on('data', (d) => { out.body += d; });
  r.on('trailers', (v) => { out.trailers = v; });
  await new Promise((resolve, reject) => {
    r.on('response', (v) => { out.headers = v; });
    r.on('end', resolve);
    r.on('error', reject);
  });
  session.destroy();
  try { out.json = JSON.parse(out.body); } catch { /* not every answer is JSON */ }
  return out;
}

const fails = async (promise, pattern) => {
  const e = await promise.then(() => null, (x) => x);
  assert.ok(e, 'it was let through');
  if (pattern) assert.match(`${e.code} ${e.message}`, pattern);
};

// ---- tests ----

const tests = [];
const test = (name, fn) => tests.push([name, fn]);
const names = (...allowOut) => ({ allowOut, denyOut: ['0.0.0.0/0'] });
const ruled = (rule, more = {}) => ({
  denyOut: ['0.0.0.0/0'], ...more,
  rules: [{ name: 'api', host: 'api.test', action: 'allow', audit: 'metadata', ...rule }],
});
const injecting = (more = {}) => ruled({
  scheme: 'https', inject: [{ header: 'authorization', secret: 'KEY', format: 'Bearer ${SECRET}' }], ...more,
});

test('TLS to an allowed name is carried to its own destination', async () => {
  await proxy.box(A, names('api.test'));
  const a = await https(A, API, request('api.test', '/x'), { ca: originCa });
  assert.equal(a.status, 200);
  assert.equal(a.json.headers.host, 'api.test');
  const [r] = await proxy.records();
  assert.deepEqual([r.event, r.host, r.addr, r.port, r.scheme, r.path], ['request', 'api.test', API, 443, 'https', '']);
  assert.ok(r.bytes_out > 100 && r.bytes_in > 100);
});

test('47: another SNI at an allowed name\'s address, an allowed SNI at another address', async () => {
  await proxy.box(A, names('api.test'));
  await net.log();
  await fails(secure(A, API, { servername: 'other.test', ca: originCa }), /access denied/i);
  await fails(secure(A, '203.0.113.32', { ca: originCa }), /access denied/i);
  const denials = await proxy.records(2);
  assert.deepEqual(denials.map((d) => [d.event, d.name, d.reason]),
    [['denial', 'other.test', 'name'], ['denial', 'api.test', 'address']]);
  assert.deepEqual(await net.log(), []);
});

test('an address that the resolver gives but that was not asked for yet', async () => {
  await proxy.box(A, names('asked.test', 'listed.test'));
  await learn('listed.test', API, false);
  const t = await secure(A, API, { servername: 'listed.test', ca: originCa });
  t.destroy();
  await fails(secure(A, '203.0.113.11', { servername: 'listed.test', ca: originCa }), /access denied/i);
});

test('45: names that only look like an allowed one', async () => {
  await proxy.box(A, names('api.test', '*.wild.test'));
  for (const servername of ['api.test.evil.test', 'evilapi.test', 'wild.test', 'xapi.test', 'api.tes'])
    await fails(secure(A, API, { servername, ca: originCa, verify: false }), /access denied/i);
  const t = await secure(A, API, { servername: 'API.TEST', ca: originCa });
  t.destroy();
  for (const host of ['api.test%00.evil.test', 'api.test\0x', 'api.test@evil.test', 'api.test.evil.test', 'evilapi.test',
    'api.test:81', '0x7f.1', 'api..test', 'api.test..', 'api.test/', '[::1]', '203.0.113.11', '3405803786', '']) {
    const a = await talk(A, API, 80, request(host));
    const status = Number(a.text.slice(9, 12));
    assert.ok([400, 403, 421].includes(status), `${JSON.stringify(host)}: ${a.text.slice(0, 200)}`);
  }
  for (const host of ['api.test', 'API.test', 'api.test.', 'api.test:80', 'api.test.:80']) {
    const a = await talk(A, API, 80, request(host));
    assert.equal(a.text.slice(9, 12), '200', `${host}: ${a.text.slice(0, 300)}`);
    assert.match(a.text, /"host":"api.test"/);
  }
});

test('no SNI, ECH and what can\'t be read are refused where names are checked', async () => {
  await proxy.box(A, names('api.test'));
  await fails(secure(A, API, { servername: '', ca: originCa, verify: false }), /access denied/i);
  const hello = Buffer.from('160301002a0100002603030000', 'hex');
  const a = await talk(A, API, 443, Buffer.concat([hello, crypto.randomBytes(64)]).toString('latin1'));
  assert.ok(a.how !== 'open', a.how);
  const reasons = (await proxy.records(2)).map((r) => r.reason);
  assert.deepEqual(reasons, ['no-sni', 'bad-sni']);
  await proxy.box(A, names('203.0.113.10'));
  const t = await secure(A, API, { servername: '', ca: originCa, verify: false });
  t.destroy();
});

test('an open policy with a rule: other names pass, hidden ones do not', async () => {
  await proxy.box(A, { rules: [{ name: 'api', host: 'api.test', action: 'deny' }] });
  const t = await secure(A, '203.0.113.11', { servername: 'other.test', ca: originCa });
  t.destroy();
  await fails(secure(A, API, { ca: originCa }), /access denied/i);
  await fails(secure(A, API, { servername: '', ca: originCa, verify: false }), /access denied/i);
});

test('49: another protocol on 443 is refused; elsewhere it passes to an opened name\'s address', async () => {
  await proxy.box(A, names('ssh.test'));
  await learn('ssh.test', '203.0.113.40');
  await learn('ssh.test', '203.0.113.41');
  await net.log();
  const a = await talk(A, '203.0.113.40', 443, 'SSH-2.0-OpenSSH_9.2\r\n');
  assert.equal(a.how, 'ECONNRESET');
  assert.equal((await proxy.records())[0].reason, 'protocol');
  assert.deepEqual(await net.log(), []);
  const b = await talk(A, '203.0.113.40', 25, [], 800);
  assert.match(b.text, /^220 banner/);
  const c = await talk(A, '203.0.113.40', 25, ['EHLO me\r\n'], 900);
  assert.match(c.text, /220 banner\r\nEHLO me/);
  const d = await talk(A, '203.0.113.41', 9000, '\x01\x02binary');
  assert.equal(d.text, '\x01\x02binary');
  const e = await talk(A, '203.0.113.31', 9000, 'binary\x01');
  assert.equal(e.how, 'ECONNRESET');
});

test('a late client of a server that might speak first is still looked at', async () => {
  await proxy.box(A, names('ssh.test'));
  await net.log();
  const s = await proxy.connect(A, '203.0.113.41', 9000);
  const end = ended(s);
  await sleep(500); // taken for a server that speaks first by now
  s.write('GET / HTTP/1.1\r\nHost: other.test\r\n\r\n');
  const got = await Promise.race([end, sleep(500).then(() => null)]);
  s.destroy();
  const text = got ? got.text : (await end).text;
  assert.match(text, /^HTTP\/1.1 403/);
  assert.ok(!(await net.log()).some((e) => e.raw));
});

test('44: plain HTTP: Host is judged on every request of a connection', async () => {
  await proxy.box(A, names('api.test', 'listed.test'));
  const s = await proxy.connect(A, API, 80);
  assert.equal((await ask(s, request('api.test', '/1'))).status, 200);
  const denied = await ask(s, request('other.test', '/2'));
  assert.equal(denied.status, 403);
  assert.equal(denied.json.code, 403);
  assert.match(denied.head, /x-holdfast-denied: name/i);
  assert.equal((await ask(s, request('listed.test', '/3'))).status, 200);
  s.destroy();
  const [one, two, three] = await proxy.records(3);
  assert.deepEqual([one.path, two.denied, two.status, three.host], ['/1', true, 403, 'listed.test']);
  const absolute = await talk(A, API, 80, 'GET http://other.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n');
  assert.match(absolute.text, /^HTTP\/1.1 400/);
  const connect = await talk(A, API, 80, 'CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n');
  assert.match(connect.text, /^HTTP\/1.1 (403|501)/);
});

test('plain HTTP/2 by prior knowledge: :authority is judged', async () => {
  await proxy.box(A, names('h2c.test'));
  await learn('h2c.test', '203.0.113.21');
  const s = await proxy.connect(A, '203.0.113.21', 80);
  const session = http2.connect('http://h2c.test', { createConnection: () => s });
  session.on('error', () => {});
  const get = (authority) => new Promise((resolve, reject) => {
    const r = session.request({ ':path': '/', ':authority': authority });
    r.on('response', (h) => resolve(h[':status']));
    r.on('error', reject);
    r.resume();
  });
  assert.equal(await get('h2c.test'), 200);
  assert.equal(await get('other.test'), 403);
  session.destroy();
});

test('an origin that closes between requests is dialled again', async () => {
  await proxy.box(A, names('api.test'));
  await learn('api.test', '203.0.113.42');
  const s = await proxy.connect(A, '203.0.113.42', 80);
  for (const pause of [0, 0, 100, 0]) assert.equal(await sleep(pause).then(() => ask(s, request('api.test'))).then((a) => a.status), 200);
  s.destroy();
});

const SMUGGLING = {
  'CL.TE': 'POST / HTTP/1.1\r\nHost: raw.test\r\nContent-Length: 34\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /admin HTTP/1.1\r\nX: y\r\n\r\n',
  'TE.CL': 'POST / HTTP/1.1\r\nHost: raw.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n1c\r\nGET /admin HTTP/1.1\r\nX: y\r\n\r\n\r\n0\r\n\r\n',
  'TE.TE': 'POST / HTTP/1.1\r\nHost: raw.test\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\nGET /admin HTTP/1.1\r\n\r\n',
  'TE with a blank': 'POST / HTTP/1.1\r\nHost: raw.test\r\nTransfer-Encoding : chunked\r\nContent-Length: 30\r\n\r\n0\r\n\r\nGET /admin HTTP/1.1\r\n\r\n',
  'TE xchunked': 'POST / HTTP/1.1\r\nHost: raw.test\r\nTransfer-Encoding: xchunked\r\nContent-Length: 30\r\n\r\n0\r\n\r\nGET /admin HTTP/1.1\r\n\r\n',
  'two lengths': 'POST / HTTP/1.1\r\nHost: raw.test\r\nContent-Length: 0\r\nContent-Length: 30\r\n\r\nGET /admin HTTP/1.1\r\nX: y\r\n\r\n',
  'length list': 'POST / HTTP/1.1\r\nHost: raw.test\r\nContent-Length: 0, 30\r\n\r\nGET /admin HTTP/1.1\r\nX: y\r\n\r\n',
  'length +': 'POST / HTTP/1.1\r\nHost: raw.test\r\nContent-Length: +30\r\n\r\nGET /admin HTTP/1.1\r\nX: y\r\n\r\n',
  'bare LF': 'GET / HTTP/1.1\nHost: raw.test\n\nGET /admin HTTP/1.1\nHost: raw.test\n\n',
  'bare LF in a header': 'GET / HTTP/1.1\r\nHost: raw.test\r\nX: a\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /admin HTTP/1.1\r\n\r\n',
  'bare CR': 'GET / HTTP/1.1\r\nHost: raw.test\r\nX: a\rTransfer-Encoding: chunked\r\n\r\n',
  'obs-fold': 'GET / HTTP/1.1\r\nHost: raw.test\r\nX: a\r\n Transfer-Encoding: chunked\r\n\r\nGET /admin HTTP/1.1\r\n\r\n',
  'folded Host': 'GET /admin HTTP/1.1\r\nHost: raw.test\r\n evil.test\r\n\r\n',
  'two Hosts': 'GET /admin HTTP/1.1\r\nHost: raw.test\r\nHost: evil.test\r\n\r\n',
  'no Host': 'GET /admin HTTP/1.1\r\n\r\n',
  'absolute against Host': 'GET http://evil.test/admin HTTP/1.1\r\nHost: raw.test\r\n\r\n',
  'absolute, Host elsewhere': 'GET http://raw.test/admin HTTP/1.1\r\nHost: evil.test\r\n\r\n',
  'blank in the target': 'GET / HTTP/1.1 HTTP/1.1\r\nHost: raw.test\r\n\r\nGET /admin HTTP/1.1\r\n\r\n',
  'NUL in a value': 'GET /admin HTTP/1.1\r\nHost: raw.test\r\nX: a\0b\r\n\r\n',
  'chunk size overflow': 'POST / HTTP/1.1\r\nHost: raw.test\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\nGET /admin HTTP/1.1\r\n\r\n',
  'Upgrade: h2c': 'GET / HTTP/1.1\r\nHost: raw.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n',
};

test('49: smuggling: refused or harmless, never two readings', async () => {
  await proxy.box(A, names('raw.test'));
  await learn('raw.test', '203.0.113.20');
  for (const [name, bytes] of Object.entries(SMUGGLING)) {
    await net.log();
    const a = await talk(A, '203.0.113.20', 80, bytes, 250);
    const upstream = (await net.log()).map((e) => e.raw).join('');
    assert.ok(!/GET \/admin|evil\.test|h2c|\n\n|[^\r]\n/i.test(upstream), `${name} upstream: ${JSON.stringify(upstream)}`);
    assert.ok((upstream.match(/^[A-Z]+ \S+ HTTP\/1\.1\r$/gm) ?? []).length <= 1, `${name}: ${JSON.stringify(upstream)}`);
    if (name !== 'Upgrade: h2c') assert.match(a.text.slice(0, 13), /^(HTTP\/1.1 4|$)/, `${name}: ${a.text}`);
  }
});

test('intercept: the header is added over verified TLS, by the tenant\'s authority, HTTP/1.1 and HTTP/2', async () => {
  await tenant();
  await proxy.box(A, injecting());
  const t = await secure(A, API);
  assert.equal(t.getPeerCertificate().issuer.CN, 'test authority');
  const a = await ask(t, request('api.test', '/v1/x?q=1', 'Authorization: Bearer mine\r\nX-Mine: ${SECRET} ${holdfast.secrets.KEY}\r\n'));
  assert.equal(a.status, 200);
  assert.equal(a.json.headers.authorization, `Bearer ${SECRET}`);
  assert.equal(a.json.headers['x-mine'], '${SECRET} ${holdfast.secrets.KEY}', 'only the rule\'s own header is filled in');
  assert.equal(a.json.url, '/v1/x?q=1');
  const b = await ask(t, request('api.test', '/v1/y', 'Content-Length: 5\r\n', 'POST') + 'hello');
  assert.deepEqual([b.status, b.json.bytes], [200, 5]);
  t.destroy();
  const [r] = await proxy.records(2);
  assert.deepEqual([r.method, r.host, r.path, r.status, r.rule, r.denied], ['GET', 'api.test', '/v1/x', 200, 'api', false]);
  const c = await h2(A, API, { ':path': '/h2' });
  assert.deepEqual([c.headers[':status'], c.json.version, c.json.headers.authorization], [200, '2.0', `Bearer ${SECRET}`]);
  const d = await h2(A, API, { ':path': '/up', ':method': 'POST' }, { body: Buffer.alloc(300000, 'z') });
  assert.equal(d.json.bytes, 300000);
  assert.ok(!proxy.output.includes(SECRET), 'the secret is in no record and no log line');
});

test('ALPN: the box gets what the origin speaks', async () => {
  await proxy.box(A, injecting());
  await learn('api.test', '203.0.113.12');
  const t = await secure(A, '203.0.113.12', { alpn: ['h2', 'http/1.1'] });
  assert.equal(t.alpnProtocol, 'http/1.1');
  assert.equal((await ask(t, request('api.test'))).status, 200);
  t.destroy();
});

test('44: SNI, Host and :authority must agree', async () => {
  await proxy.box(A, { ...injecting(), rules: [...injecting().rules, { name: 'other', host: 'other.test', action: 'allow' }] });
  await learn('other.test', API);
  await net.log();
  for (const host of ['other.test', 'api.test:8443', API, 'evil.test'])
    assert.equal((await https(A, API, request(host))).status, 421, host);
  assert.equal((await h2(A, API, { ':authority': 'other.test' })).headers[':status'], 421);
  assert.deepEqual((await net.log()).filter((e) => e.url), []);
  assert.equal((await https(A, API, request('api.test:443'))).status, 200);
});

test('method and path are judged per request; a denial says policy and rule', async () => {
  await proxy.box(A, ruled({ methods: ['GET'], path: '/v1/*' }));
  const t = await secure(A, API);
  assert.equal((await ask(t, request('api.test', '/v1/a'))).status, 200);
  const b = await ask(t, request('api.test', '/v2/a'));
  assert.equal(b.status, 403);
  assert.equal(b.json.reason, 'no-rule');
  assert.ok('policy' in b.json && 'rule' in b.json && b.json.message.length > 10);
  assert.equal((await ask(t, request('api.test', '/v1/../v2/a'))).status, 403);
  assert.equal((await ask(t, request('api.test', '/v1/%2e%2e/v2/a'))).status, 403);
  assert.equal((await ask(t, request('api.test', '/v1/a', 'Content-Length: 0\r\n', 'POST'))).status, 403);
  t.destroy();
});

test('a leaf is minted only after the rule allowed the name and the origin was verified', async () => {
  await proxy.box(A, { denyOut: ['0.0.0.0/0'], rules: [{ name: 'no', host: 'other.test', action: 'deny' }, { host: 'bad.test', action: 'allow' }] });
  const before = (await proxy.stats(A)).minted;
  await fails(secure(A, API, { servername: 'other.test' }), /access denied/i);
  await fails(secure(A, API, { servername: 'unknown.test' }), /access denied/i);
  assert.equal((await proxy.stats(A)).minted, before);
});

test('an origin with a bad certificate gets nothing', async () => {
  const rules = [{ name: 'bad', host: 'bad.test', action: 'allow', scheme: 'https', inject: [{ header: 'authorization', secret: 'KEY', format: '${SECRET}' }] }];
  await proxy.box(A, { denyOut: ['0.0.0.0/0'], rules });
  const before = (await proxy.stats(A)).minted;
  const said = proxy.output.length;
  proxy.events = [];
  await net.log();
  for (const last of [31, 32, 33]) {
    await learn('bad.test', `203.0.113.${last}`);
    await fails(secure(A, `203.0.113.${last}`, { servername: 'bad.test' }), /bad certificate/i);
  }
  assert.deepEqual((await proxy.records(3)).map((r) => r.reason), Array(3).fill('origin-certificate'));
  const log = proxy.output.slice(said);
  assert.match(log, /self.signed/i);
  assert.match(log, /mismatch|name/i);
  assert.match(log, /expired/i);
  assert.deepEqual((await net.log()).filter((e) => e.url), []);
  assert.equal((await proxy.stats(A)).minted, before);
});

test('46: a redirect is only an answer; the next hop is judged', async () => {
  await proxy.box(A, injecting());
  const a = await https(A, API, request('api.test', '/redirect'));
  assert.equal(a.status, 302);
  assert.match(a.head, /location: https:\/\/denied.test\//i);
  await fails(secure(A, '203.0.113.11', { servername: 'denied.test' }), /access denied/i);
});

test('55, 56: placeholders elsewhere stay placeholders; another tenant\'s box gets nothing', async () => {
  await proxy.box(A, { ...injecting(), allowOut: ['listed.test'] });
  const a = await talk(A, API, 80, request('listed.test', '/', 'Authorization: Bearer ${SECRET}\r\n'));
  assert.match(a.text, /"authorization":"Bearer \$\{SECRET\}"/);
  await proxy.tell({ do: 'tenant', name: 'other', secrets: {}, ca_cert: tenantCa, ca_key: tenantKey });
  await proxy.box('127.0.0.3', injecting(), { tenant: 'other' });
  const b = await https('127.0.0.3', API, request('api.test'));
  assert.equal(b.status, 502);
  assert.match(b.json.message, /no secret named "key"/);
  assert.ok(!JSON.stringify(b).includes(SECRET));
});

test('57: a rotated secret is used by the next request of an open connection', async () => {
  await proxy.box(A, injecting());
  const t = await secure(A, API);
  await ask(t, request('api.test'));
  await tenant({ key: 'rotated-value' });
  assert.equal((await ask(t, request('api.test'))).json.headers.authorization, 'Bearer rotated-value');
  t.destroy();
  await tenant({ key: 'two\r\nX-Evil: 1' });
  await net.log();
  const bad = await https(A, API, request('api.test'));
  assert.equal(bad.status, 502);
  assert.deepEqual((await net.log()).filter((e) => e.url), []);
  await tenant();
});

test('a rule that adds credentials is refused in plain text', async () => {
  await proxy.box(A, ruled({ inject: [{ header: 'authorization', secret: 'KEY', format: '${SECRET}' }], scheme: 'https', ports: [443, 80] }));
  await net.log();
  const a = await talk(A, API, 80, request('api.test'));
  assert.match(a.text, /^HTTP\/1.1 403/);
  assert.deepEqual((await net.log()).filter((e) => e.url), []);
});

test('a rule for plain HTTP judges method and path', async () => {
  await proxy.box(A, ruled({ scheme: 'http', methods: ['GET'], path: '/ok*' }));
  assert.match((await talk(A, API, 80, request('api.test', '/okay'))).text, /^HTTP\/1.1 200/);
  assert.match((await talk(A, API, 80, request('api.test', '/no'))).text, /^HTTP\/1.1 403/);
});

test('audit: none records denials only, full keeps the query', async () => {
  await proxy.box(A, ruled({ audit: 'none', path: '/a*' }));
  proxy.events = [];
  assert.equal((await https(A, API, request('api.test', '/a'))).status, 200);
  assert.equal((await https(A, API, request('api.test', '/b'))).status, 403);
  const all = await proxy.records(1);
  assert.deepEqual(all.map((r) => [r.path, r.denied]), [['/b', true]]);
  await proxy.box(A, ruled({ audit: 'full' }));
  await https(A, API, request('api.test', '/q?token=1'));
  assert.equal((await proxy.records())[0].path, '/q?token=1');
});

const handshake = (path) => request('api.test', path, 'Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n');

test('49: a WebSocket is judged, then carried, and cut when the policy changes', async () => {
  await proxy.box(A, injecting({ path: '/ws*' }));
  const no = await https(A, API, handshake('/other'));
  assert.equal(no.status, 403);
  for (const addr of [API, '203.0.113.12']) {
    const t = await secure(A, addr);
    const first = new Promise((resolve) => t.once('data', resolve));
    t.write(handshake('/ws'));
    assert.match((await first).toString(), /^HTTP\/1.1 101 [^]*sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK\+xOo=/i);
    const back = new Promise((resolve) => t.once('data', resolve));
    t.write('frames');
    assert.equal((await back).toString(), 'frames');
    const cut = ended(t);
    await proxy.box(A, ruled({ path: '/nothing' }));
    assert.notEqual((await cut).how, 'timeout');
    await proxy.box(A, injecting({ path: '/ws*' }));
  }
  assert.ok((await net.log()).some((e) => e.upgrade && e.headers.authorization === `Bearer ${SECRET}`));
});

test('a changed policy cuts what is open and no longer allowed', async () => {
  await proxy.box(A, names('api.test', 'listed.test'));
  const keep = await secure(A, API, { servername: 'listed.test', ca: originCa });
  const t = await secure(A, API, { ca: originCa });
  const cut = ended(t);
  await proxy.box(A, names('listed.test'));
  assert.notEqual((await cut).how, 'timeout');
  assert.equal((await ask(keep, request('listed.test'))).status, 200);
  const gone = ended(keep);
  await proxy.box(A, names('listed.test'), { gone: true });
  assert.notEqual((await gone).how, 'timeout');
  await proxy.box(A, injecting());
  const slow = await secure(A, API);
  const over = ended(slow);
  slow.write(request('api.test', '/slow'));
  await sleep(200);
  await proxy.box(A, injecting({ path: '/v1/*' }));
  assert.notEqual((await over).how, 'timeout');
});

test('records say which exec it was, by the sandbox\'s envd, and do without when it does not answer', async () => {
  const path = `${dir}/envd.sock`;
  const asked = [];
  const envd = http.createServer((req, res) => {
    let body = '';
    req.on('data', (d) => { body += d; });
    req.on('end', () => {
      asked.push([req.method, req.url, JSON.parse(body)]);
      res.end(JSON.stringify({ pid: 7, exec: '42' }));
    });
  });
  await new Promise((resolve) => envd.listen(path, resolve));
  await proxy.box(A, injecting(), { envd_ctl: path });
  assert.equal((await https(A, API, request('api.test'))).status, 200);
  assert.equal((await proxy.records())[0].exec, '42');
  const [[method, url, q]] = asked;
  assert.deepEqual([method, url, q.address, q.remote_address, q.remote_port], ['POST', '/owner', A, API, 443]);
  envd.closeAllConnections();
  await new Promise((resolve) => envd.close(resolve));
  const mute = nodeNet.createServer(() => {});
  await new Promise((resolve) => mute.listen(path, resolve));
  assert.equal((await https(A, API, request('api.test'))).status, 200);
  assert.equal((await proxy.records())[0].exec, '');
  await proxy.box(A, injecting(), { envd_ctl: `${dir}/missing.sock` });
  assert.equal((await https(A, API, request('api.test'))).status, 200);
  await sleep(1200); // the question to the mute one is given up
  mute.close();
});

test('bodies stream both ways with backpressure; trailers arrive', async () => {
  await proxy.box(A, injecting());
  const size = 8 << 20;
  const big = await https(A, API, request('api.test', `/big?n=${size}`));
  assert.ok(big.body.length >= size, `${big.body.length}`);
  const body = crypto.randomBytes(4 << 20);
  const t = await secure(A, API);
  const sent = ask(t, request('api.test', '/in', `Content-Length: ${body.length}\r\nExpect: 100-continue\r\n`, 'POST'));
  t.write(body);
  const all = await sent;
  t.destroy();
  assert.ok(all.head.startsWith('HTTP/1.1 100') || all.status === 200);
  const g = await h2(A, API, { ':path': '/trailers', ':method': 'POST', te: 'trailers' }, { body: 'x' });
  assert.equal(g.trailers['grpc-status'], '0');
});

test('private addresses: only those that an entry names', async () => {
  await learn('inner.test', '10.20.0.5', false);
  await proxy.box(A, names('203.0.113.0/24'));
  await fails(secure(A, '10.20.0.5', { ca: originCa }), /access denied/i);
  await proxy.box(A, names('10.20.0.5'));
  const t = await secure(A, '10.20.0.5', { ca: originCa });
  t.destroy();
});

test('the host\'s own addresses are dialled only when named alone', async () => {
  await proxy.box(A, names('192.0.2.0/24'));
  const a = await talk(A, '192.0.2.1', 15001, '\x01\x02', 600);
  assert.ok(a.how !== 'open');
});

test('IPv6', async () => {
  await learn('api.test', '2001:db8:1::10');
  await proxy.box(A, injecting());
  const a = await https(A, '2001:db8:1::10', request('api.test'));
  assert.equal(a.json.headers.authorization, `Bearer ${SECRET}`);
});

test('the policy\'s proxy: SOCKS5 by name with a password, HTTP CONNECT, their refusals', async () => {
  const socks = (password) => ({ address: '198.51.100.8:1080', type: 'socks5', username: 'u', password });
  await proxy.box(A, { ...names('api.test'), egressProxy: socks('right') });
  await net.log();
  const a = await https(A, API, request('api.test'), { ca: originCa });
  assert.equal(a.status, 200);
  assert.ok((await net.log()).some((e) => e.at === 'socks' && e.to === 'api.test' && e.port === 443));
  await fails(secure(A, API, { servername: 'other.test', ca: originCa }), /access denied/i);
  assert.ok(!(await net.log()).some((e) => e.at === 'socks'));
  await proxy.box(A, { ...names('api.test'), egressProxy: socks('wrong') });
  await fails(secure(A, API, { ca: originCa }));
  await proxy.box(A, { ...injecting(), egressProxy: { address: '198.51.100.8:3128', type: 'http', username: 'u', password: 'p' } });
  await net.log();
  const b = await https(A, API, request('api.test'));
  assert.equal(b.json.headers.authorization, `Bearer ${SECRET}`);
  const seen = (await net.log()).find((e) => e.at === 'connect');
  assert.deepEqual([seen.to, seen.auth], ['api.test:443', 'Basic dTpw']);
});

test('a proxy at a private address is dialled only if allow_out names it', async () => {
  const egressProxy = { address: '10.20.0.8:3128', type: 'http' };
  await proxy.box(A, { ...names('api.test'), egressProxy });
  await net.log();
  await fails(secure(A, API, { ca: originCa }));
  assert.ok(!(await net.log()).some((e) => e.at === 'connect'));
  await proxy.box(A, { ...names('api.test', '10.20.0.8'), egressProxy });
  const t = await secure(A, API, { ca: originCa });
  t.destroy();
  assert.ok((await net.log()).some((e) => e.at === 'connect' && e.to === 'api.test:443'));
});

test('limits: silent connections of a box, connections of a box; neighbours are served', async () => {
  const B = '127.0.0.4';
  await proxy.box(B, names('ssh.test'));
  await proxy.box(A, names('api.test'));
  proxy.events = [];
  const open = [];
  for (let i = 0; i < 64; i++) open.push(await proxy.connect(B, '203.0.113.10', 443));
  const one = await proxy.connect(B, '203.0.113.10', 443);
  assert.equal((await ended(one)).how, 'ECONNRESET');
  assert.match((await proxy.records())[0].reason, /silent/);
  assert.equal((await https(A, API, request('api.test'), { ca: originCa })).status, 200);
  open.forEach((s) => s.destroy());
  await sleep(200);
  assert.equal((await proxy.stats(B)).open, 0);
  const busy = [];
  for (let i = 0; i < 1024; i++) {
    const s = await proxy.connect(B, '203.0.113.41', 9000);
    s.write('\x01');
    busy.push(s);
    if (i % 32 === 31) await sleep(20);
  }
  await sleep(300);
  assert.equal((await proxy.stats(B)).open, 1024);
  proxy.events = [];
  const more = await proxy.connect(B, '203.0.113.41', 9000);
  assert.equal((await ended(more)).how, 'ECONNRESET');
  assert.ok((await proxy.records()).some((r) => /connections of a sandbox/.test(r.reason)));
  assert.equal((await https(A, API, request('api.test'), { ca: originCa })).status, 200);
  busy.forEach((s) => s.destroy());
  for (let i = 0; i < 50 && (await proxy.stats(B)).open; i++) await sleep(50);
  assert.equal((await proxy.stats(B)).open, 0);
});

test('a rule that names an address', async () => {
  await proxy.box(A, { denyOut: ['0.0.0.0/0'], rules: [{ name: 'ip', host: '203.0.113.11', scheme: 'https', action: 'allow', path: '/v1/*' }] });
  const t = await secure(A, '203.0.113.11', { servername: '', verify: false });
  assert.match(t.getPeerCertificate().subjectaltname, /203\.0\.113\.11/);
  assert.equal((await ask(t, request('203.0.113.11', '/v1/a'))).status, 200);
  assert.equal((await ask(t, request('203.0.113.11', '/v2/a'))).status, 403);
  assert.equal((await ask(t, request('api.test', '/v1/a'))).status, 421);
  t.destroy();
  await fails(secure(A, API, { servername: '', verify: false }), /access denied/i);
});

test('a connection from before names were checked does not outlive that', async () => {
  await proxy.box(A, { rules: [{ name: 'x', host: 'x.test', action: 'deny' }] }); // open otherwise
  const bound = await secure(A, API, { ca: originCa });
  const unbound = await secure(A, '203.0.113.32', { verify: false });
  const cut = ended(unbound);
  await proxy.box(A, names('api.test'));
  assert.notEqual((await cut).how, 'timeout');
  assert.equal((await ask(bound, request('api.test'))).status, 200);
  bound.destroy();
});

test('limits: a client that says nothing or half of it, an origin that does not shake hands', async () => {
  await proxy.box(A, names('api.test', 'ssh.test'));
  await proxy.box('127.0.0.5', { denyOut: ['0.0.0.0/0'], rules: [{ host: 'mute.test', scheme: 'https', ports: [8080], action: 'allow' }] });
  await learn('mute.test', '203.0.113.20');
  const t0 = Date.now();
  const silent = await proxy.connect(A, API, 443);
  const half = await proxy.connect(A, API, 443);
  half.write(Buffer.from('16030101000100', 'hex'));
  const slow = await proxy.connect(A, API, 80);
  slow.write('GET / HT');
  const head = await proxy.connect(A, API, 80);
  head.write('GET / HTTP/1.1\r\nHost: ap');
  const all = [silent, half, slow, head].map((s) => ended(s, 14000));
  const mute = fails(secure('127.0.0.5', '203.0.113.20', { port: 8080, servername: 'mute.test' }), /internal error/i);
  for (const e of await Promise.all(all)) assert.notEqual(e.how, 'timeout');
  assert.ok(Date.now() - t0 > 9000);
  await mute;
});

test('limits: a reader that does not read holds back its origin, not memory', async () => {
  await proxy.box(A, names('api.test'));
  const rss = () => Number(/VmRSS:\s+(\d+)/.exec(fs.readFileSync(`/proc/${proxy.proc.pid}/status`, 'utf8'))[1]);
  const before = rss();
  const pipe = await secure(A, API, { ca: originCa });
  pipe.pause();
  pipe.write(request('api.test', `/big?n=${96 << 20}`));
  await proxy.box('127.0.0.5', injecting());
  const exchange = await secure('127.0.0.5', API);
  exchange.pause();
  exchange.write(request('api.test', `/big?n=${96 << 20}`));
  await sleep(1500);
  assert.ok(rss() - before < 64 << 10, `${rss() - before} KiB more`);
  pipe.destroy();
  exchange.destroy();
});

test('limits: leaves are kept for as many names as there is room for', async () => {
  await proxy.box(A, { denyOut: ['0.0.0.0/0'], rules: [{ host: '*.wild.test', action: 'allow' }] });
  const get = async (i) => {
    const name = `h${i}.wild.test`;
    if (!wild.has(name)) await learn(name, API);
    wild.add(name);
    (await secure(A, API, { servername: name })).destroy();
  };
  const wild = new Set();
  const before = (await proxy.stats(A)).minted;
  for (let i = 0; i < 1024; i += 16) await Promise.all(Array.from({ length: 16 }, (_, k) => get(i + k)));
  await get(0);
  assert.equal((await proxy.stats(A)).minted - before, 1024, 'a second connection has the same leaf');
  const first = (await proxy.stats(A)).minted;
  for (let i = 1024; i < 1040; i++) await get(i);
  await get(1);
  assert.equal((await proxy.stats(A)).minted - first, 17, 'the oldest was dropped');
});

test('limits: connections of all boxes', async () => {
  await learn('ssh.test', '203.0.113.41');
  const boxes = Array.from({ length: 8 }, (_, i) => `127.0.1.${i + 1}`);
  for (const b of boxes) await proxy.box(b, names('ssh.test'));
  const open = [];
  for (let i = 0; i < 8192; i++) {
    const http = i % 8 < 4; // answered, then idle; the others are tunnels
    const s = await (http ? proxy.connect(boxes[i % 8], API, 80) : proxy.connect(boxes[i % 8], '203.0.113.41', 9000));
    s.write(http ? 'GET / HTTP/1.1\r\nHost: denied.test\r\n\r\n' : '\x01');
    open.push(s);
    if (i % 64 === 63) await sleep(5);
  }
  await sleep(500);
  assert.equal((await proxy.stats(A)).conns, 8192);
  await proxy.box(A, names('api.test'));
  proxy.events = [];
  assert.equal((await ended(await proxy.connect(A, API, 443))).how, 'ECONNRESET');
  assert.ok((await proxy.records()).some((r) => /connections of all/.test(r.reason)));
  open.forEach((s) => s.destroy());
  for (let i = 0; i < 400 && (await proxy.stats(A)).conns; i++) await sleep(50);
  assert.equal((await proxy.stats(A)).conns, 0);
});

test('it ends without a leak of handles, and the secret was written nowhere', async () => {
  await tenant();
  await proxy.box(A, injecting());
  const mute = nodeNet.createServer(() => {});
  await new Promise((resolve) => mute.listen(`${dir}/mute.sock`, resolve));
  await proxy.box(A, injecting(), { envd_ctl: `${dir}/mute.sock` });
  const t = await secure(A, API);
  t.on('error', () => {});
  t.write(request('api.test', '/slow'));
  await sleep(100);
  assert.equal(await proxy.end(), 0, proxy.output.slice(-2000));
  assert.ok(!proxy.output.includes(SECRET));
});

let failed = 0;
await learn('api.test', API);
for (const [name, fn] of tests) {
  if (!name.includes(filter)) continue;
  await sleep(50); // what the test before left behind has been said by then
  await proxy.stats(A);
  proxy.events = [];
  try {
    await Promise.race([fn(), sleep(60000).then(() => { throw new Error('took too long'); })]);
    console.log(`ok - ${name}`);
  } catch (e) {
    failed++;
    console.log(`not ok - ${name}\n${e.stack}`);
    if (/l7-host ended/.test(e.message)) break;
  }
}
net.end();
process.exit(failed ? 1 : 0);
