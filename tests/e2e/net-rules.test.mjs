// L7 rules and secrets: what is intercepted, what is injected, and that the secret is nowhere in the sandbox.
import assert from 'node:assert/strict'
import { readFileSync, readdirSync } from 'node:fs'
import path from 'node:path'
import { after, before, describe, test } from 'node:test'
import { createOwn, get, install, netbox, probe } from './lib/net.mjs'
import { forget, seen } from './lib/internet.mjs'
import { api, daemonFacts } from './lib/suite.mjs'
import { until } from './lib/http.mjs'

const ALL = ['0.0.0.0/0', '::/0']
const SECRET = 'sk-e2e-5f1c9d7be2a84c60-do-not-leak'
const HOST = 'api.model.example'
const models = (more = {}) => ({
  denyOut: ALL,
  allowOut: ['other.example'],
  rules: [
    { name: 'no admin', host: HOST, path: '/admin/*', action: 'deny' },
    { name: 'models', host: HOST, methods: ['GET', 'POST'], path: '/v1/*', action: 'allow', audit: 'metadata', inject: [{ header: 'Authorization', secret: 'E2E_KEY', format: 'Bearer ${SECRET}' }] },
  ],
  ...more,
})
const records = (r) => r.outbound ?? r.items ?? r.data ?? r

describe('credential injection', () => {
  let sbx
  const http = api()
  before(async () => {
    await http.json('DELETE', '/secrets/e2e_key')
    await http.call('POST', '/secrets', { name: 'e2e_key', value: SECRET })
    sbx = await createOwn({ network: models() })
    await install(sbx)
  })
  after(async () => {
    await sbx?.kill()
    await http.json('DELETE', '/secrets/e2e_key')
  })

  test('the origin gets the secret, curl, Python, Node and git trust the connection', async () => {
    await forget()
    const env = 'curl -sS -m 5 https://api.model.example/v1/chat && python3 -c "import urllib.request as u; print(u.urlopen(\'https://api.model.example/v1/py\').status)" && node -e "fetch(\'https://api.model.example/v1/node\').then(r=>console.log(r.status))"'
    const r = await sbx.commands.run(env)
    assert.match(r.stdout, /200\n200\n$/)
    const got = (await seen()).http.filter((h) => h.host === HOST)
    assert.equal(got.length, 3)
    for (const h of got) assert.equal(h.headers.authorization, `Bearer ${SECRET}`)
    assert.ok(got.every((h) => h.secure && h.sni === HOST))
  })

  test('rules: the first that matches decides; no rule is a denial; what the box sends as credential is replaced', async () => {
    await forget()
    const r = await probe(
      sbx,
      get(`https://${HOST}/v1/x`, { headers: { Authorization: 'Bearer mine' } }),
      get(`https://${HOST}/admin/keys`),
      get(`https://${HOST}/v2/x`),
      get(`https://${HOST}/v1/x`, { method: 'DELETE' }),
      get(`https://${HOST}/v1/../admin/keys`),
      get(`https://${HOST}/v1/%2e%2e/admin/keys`),
      get(`https://${HOST}//admin/keys`),
      get(`https://${HOST}/v1/x`, { host: 'other.example' }),
      get(`http://${HOST}/v1/x`)
    )
    assert.equal(r[0].status, 200)
    for (const [i, x] of r.slice(1).entries()) {
      assert.ok(typeof x === 'string' || x.status >= 400, `${i + 1}: ${JSON.stringify(x)}`)
      if (typeof x !== 'string' && x.status === 403) assert.ok(x.headers['x-holdfast-denied'], JSON.stringify(x))
    }
    const got = (await seen()).http
    assert.deepEqual(got.map((h) => h.url), ['/v1/x'])
    assert.equal(got[0].headers.authorization, `Bearer ${SECRET}`)
  })

  test('HTTP/2 and a WebSocket through the interception', async () => {
    await forget()
    const h2 = await sbx.commands.run(`curl -sS -m 5 --http2 -o /dev/null -w '%{http_version} %{http_code}' https://${HOST}/v1/h2`)
    assert.equal(h2.stdout, '2 200')
    const raw = `GET /v1/ws HTTP/1.1\r\nHost: ${HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n`
    await sbx.files.write('/tmp/ws.py', `import socket, ssl
s = ssl.create_default_context().wrap_socket(socket.create_connection(('${HOST}', 443)), server_hostname='${HOST}')
s.sendall(${JSON.stringify(raw)}.encode()); d = s.recv(4096)
s.sendall(b'ping-pong'); print(d.split(b'\\r\\n')[0].decode(), s.recv(100).decode())
`)
    assert.equal((await sbx.commands.run('python3 /tmp/ws.py')).stdout, 'HTTP/1.1 101 Switching Protocols ping-pong\n')
    const got = (await seen()).http
    assert.ok(got.every((h) => h.headers.authorization === `Bearer ${SECRET}`), JSON.stringify(got))
  })

  test('55, 56 the placeholder and the secret go to nobody else', async (t) => {
    const other = await netbox(t, { network: { ...models(), rules: [] } })
    await forget()
    await probe(sbx, get('https://other.example/', { verify: false, headers: { 'x-try': '${E2E_KEY} ${holdfast.secrets.E2E_KEY}' } }))
    await probe(other, get(`https://${HOST}/v1/x`, { verify: false }))
    const got = (await seen()).http
    assert.ok(!JSON.stringify(got).includes(SECRET))
    assert.equal(got[0].headers['x-try'], '${E2E_KEY} ${holdfast.secrets.E2E_KEY}')
    assert.equal(got.length, 1)
  })

  test('57 rotation reaches a running sandbox at its next request', async () => {
    await http.call('POST', '/secrets/e2e_key', { value: `${SECRET}-2` })
    await forget()
    await probe(sbx, get(`https://${HOST}/v1/rotated`))
    assert.equal((await seen()).http[0].headers.authorization, `Bearer ${SECRET}-2`)
  })

  test('54 the secret is nowhere: environment, files, memory, cores, records, logs, answers', async () => {
    // As root in the box: every readable file of the writable layer and of /proc, and the memory of every process.
    await sbx.files.write('/tmp/hunt.py', `import os, re
needle = bytes.fromhex('${Buffer.from(SECRET).toString('hex')}')
found = []
for pid in filter(str.isdigit, os.listdir('/proc')):
    if pid == str(os.getpid()): continue
    for f in ('environ', 'cmdline'):
        try:
            if needle in open(f'/proc/{pid}/{f}', 'rb').read(): found.append(f'{pid} {f}')
        except OSError: pass
    try:
        maps = open(f'/proc/{pid}/maps').read()
        mem = open(f'/proc/{pid}/mem', 'rb', 0)
    except OSError: continue
    for line in maps.splitlines():
        m = re.match(r'([0-9a-f]+)-([0-9a-f]+) r', line)
        if not m or '[v' in line: continue
        a, b = int(m[1], 16), int(m[2], 16)
        try:
            mem.seek(a)
            if needle in mem.read(min(b - a, 256 << 20)): found.append(f'{pid} memory {line}')
        except (OSError, ValueError, OverflowError): pass
for top in ('/home', '/tmp', '/var', '/etc', '/run', '/root', '/usr/local', '/workspace'):
    for d, _, files in os.walk(top):
        for f in files:
            p = os.path.join(d, f)
            try:
                if os.path.isfile(p) and not os.path.islink(p) and needle in open(p, 'rb').read(): found.append(p)
            except OSError: pass
print(found)
`)
    const hex = await sbx.commands.run('python3 /tmp/hunt.py', { user: 'root', timeoutMs: 120_000 })
    assert.equal(hex.stdout, '[]\n')
    const answers = []
    for (const p of ['/secrets', '/secrets/e2e_key', `/sandboxes/${sbx.sandboxId}`, `/v1/sandboxes/${sbx.sandboxId}/network`, `/v1/sandboxes/${sbx.sandboxId}/outbound`, `/sandboxes/${sbx.sandboxId}/logs`])
      answers.push(JSON.stringify((await http.json('GET', p)).body ?? ''))
    assert.ok(!answers.join().includes(SECRET))
    // On the host: the database, its log, records, run-time files. Only the key file opens what is sealed.
    const hunt = (dir) => readdirSync(dir, { withFileTypes: true }).flatMap((e) => {
      const p = path.join(dir, e.name)
      if (e.isDirectory()) return e.name === 'pool' ? [] : hunt(p) // sandboxes' own disks: looked at from inside
      return e.isFile() && e.name !== 'pool.img' && readFileSync(p).includes(SECRET) ? [p] : []
    })
    assert.deepEqual(hunt(daemonFacts.data), [])
  })

  test('the record of a request has everything but the secret', async () => {
    const record = await until('the record', async () => {
      const list = records(await http.call('GET', `/v1/sandboxes/${sbx.sandboxId}/outbound?limit=100`))
      return list.find((r) => r.kind === 'request' && r.path === '/v1/chat')
    }, { timeoutMs: 10_000 })
    assert.deepEqual([record.host, record.method, record.status, record.decision, record.rule], [HOST, 'GET', 200, 'allow', 'models'])
    assert.equal(record.addr, '198.51.100.20')
    assert.ok(record.bytes_in > 0)
  })

  test('policy test tells the decision and the rule', async () => {
    const ask = (url, method = 'GET') => http.call('POST', `/v1/sandboxes/${sbx.sandboxId}/network/test`, { url, method })
    assert.equal((await ask(`https://${HOST}/v1/x`)).decision, 'allow')
    const denied = await ask(`https://${HOST}/admin/x`)
    assert.equal(denied.decision, 'deny')
    assert.match(JSON.stringify(denied), /no admin/)
    assert.equal((await ask('https://evil.example/')).decision, 'deny')
    assert.equal((await ask('http://169.254.169.254/')).decision, 'deny')
  })
})

test('E2B rules: a transform of headers, with a secret by its E2B name', async (t) => {
  const http = api()
  await http.json('DELETE', '/secrets/e2e_second')
  await http.call('POST', '/secrets', { name: 'e2e_second', value: 'second-value' })
  t.after(() => http.json('DELETE', '/secrets/e2e_second'))
  const sbx = await netbox(t, { network: { denyOut: ALL, allowOut: [HOST], rules: { [HOST]: [{ transform: { headers: { 'X-Key': '${e2b.secrets.e2e_second}', 'X-Plain': 'yes' } } }] } } })
  await forget()
  const [r] = await probe(sbx, get(`https://${HOST}/anything`))
  assert.equal(r.status, 200)
  const [got] = (await seen()).http
  assert.deepEqual([got.headers['x-key'], got.headers['x-plain']], ['second-value', 'yes'])
})

test('an origin with a certificate of nobody gets nothing', async (t) => {
  const http = api()
  await http.json('DELETE', '/secrets/e2e_third')
  await http.call('POST', '/secrets', { name: 'e2e_third', value: 'third-value' })
  t.after(() => http.json('DELETE', '/secrets/e2e_third'))
  const sbx = await netbox(t, { network: { denyOut: ALL, rules: [{ host: 'badcert.example', action: 'allow', inject: [{ header: 'x-key', secret: 'E2E_THIRD', format: '${SECRET}' }] }] } })
  await forget()
  const [r] = await probe(sbx, get('https://badcert.example/', { verify: false }))
  assert.ok(typeof r === 'string' || r.status >= 500, JSON.stringify(r))
  assert.deepEqual((await seen()).http, [])
})

test('a policy that takes a host away ends what is open to it', async (t) => {
  const sbx = await netbox(t, { network: { denyOut: ALL, allowOut: ['allowed.example', 'other.example'] } })
  const slow = sbx.commands.run('curl -sS -N -m 8 http://allowed.example/slow | wc -l; true')
  await new Promise((r) => setTimeout(r, 1000))
  await sbx.updateNetwork({ denyOut: ALL, allowOut: ['other.example'] })
  const lines = Number((await slow).stdout)
  assert.ok(lines > 2 && lines < 40, `lines: ${lines}`)
  assert.equal((await probe(sbx, get('http://other.example/')))[0].status, 200)
})
