// The front door in TLS, with the authority that `holdfast cert init` made: the unmodified SDK by domain, HTTP/2,
// gRPC ports, WebSockets, traffic tokens and preview links.
import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import http2 from 'node:http2'
import path from 'node:path'
import tls from 'node:tls'
import { after, before, describe, test } from 'node:test'
import { promisify } from 'node:util'
import { Sandbox } from 'e2b'
import { api, daemonFacts, sdk } from './lib/suite.mjs'
import { until } from './lib/http.mjs'

const run = promisify(execFile)
const base = new URL(process.env.HF_E2E_HTTPS)
const port = Number(base.port)
const caFile = path.join(daemonFacts.data, 'tls/ca.pem')
const ca = readFileSync(caFile)

const connect = (host) => http2.connect(`https://${host}:${port}`, { ca, servername: host, lookup: (h, o, cb) => (o.all ? cb(null, [{ address: '127.0.0.1', family: 4 }]) : cb(null, '127.0.0.1', 4)) })

function h2(session, headers, { body, keep } = {}) {
  return new Promise((resolve, reject) => {
    const req = session.request({ ':method': body === undefined ? 'GET' : 'POST', ...headers })
    const got = { data: Buffer.alloc(0) }
    req.on('response', (h) => (got.headers = h))
    req.on('trailers', (h) => (got.trailers = h))
    req.on('data', (d) => (got.data = Buffer.concat([got.data, d])))
    req.on('end', () => resolve({ status: got.headers?.[':status'], ...got, text: got.data.toString() }))
    req.on('error', reject)
    if (!keep) req.end(body)
  })
}

const APP = `
const http = require('http'), http2 = require('http2'), crypto = require('crypto')
http.createServer((q, s) => { let n = 0; q.on('data', (d) => (n += d.length)); q.on('end', () => s.end(JSON.stringify({ method: q.method, url: q.url, headers: q.headers, n }))) })
  .on('upgrade', (q, s) => { s.write('HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n\\r\\n'); s.on('error', () => {}); s.on('data', (d) => s.write(d)) }).listen(8080)
http2.createServer().on('stream', (s, h) => {
  const parts = []
  s.on('data', (d) => parts.push(d))
  s.on('end', () => { s.respond({ ':status': 200, 'content-type': 'application/grpc' }, { waitForTrailers: true }); s.on('wantTrailers', () => s.sendTrailers({ 'grpc-status': '0', 'x-path': h[':path'] })); s.end(Buffer.concat(parts)) })
}).listen(9090)
`

describe('https', () => {
  let sbx
  let host
  before(async () => {
    sbx = await Sandbox.create('base', { ...sdk, timeoutMs: 300_000 })
    await sbx.files.write('/tmp/app.cjs', APP)
    await sbx.commands.run('node /tmp/app.cjs', { background: true, timeoutMs: 0 })
    host = (p) => `${p}-${sbx.sandboxId}.sbx.test`
    await until('the app serves', async () => (await sbx.commands.run('curl -s -o /dev/null -w "%{http_code}" http://localhost:8080/ || true')).stdout === '200', { timeoutMs: 8000 })
  })
  after(() => sbx?.kill())

  test('the SDK by domain, unmodified, over TLS', async () => {
    const script = `
import dns from 'node:dns'
const real = dns.lookup
dns.lookup = (h, o, cb) => { if (typeof o === 'function') { cb = o; o = {} } return h.endsWith('sbx.test') ? (o.all ? cb(null, [{ address: '127.0.0.1', family: 4 }]) : cb(null, '127.0.0.1', 4)) : real(h, o, cb) }
const { Sandbox } = await import('e2b')
const s = await Sandbox.create('base')
const r = await s.commands.run('echo over tls')
await s.files.write('a.txt', 'x'.repeat(300000))
const back = await s.files.read('a.txt')
console.log(r.stdout.trim(), back.length, s.getHost(8080).startsWith('8080-' + s.sandboxId), await s.isRunning())
await s.kill()
process.exit(0)
`
    const r = await run(process.execPath, ['--input-type=module', '-e', script], {
      cwd: import.meta.dirname,
      env: { ...process.env, E2B_DOMAIN: `sbx.test:${port}`, E2B_API_KEY: sdk.apiKey, NODE_EXTRA_CA_CERTS: caFile, E2B_API_URL: '', E2B_SANDBOX_URL: '' },
      timeout: 60_000,
    })
    assert.equal(r.stdout, 'over tls 300000 true true\n')
  })

  test('HTTP/2 to the API and to an HTTP/1.1 port; many streams on one connection', async () => {
    const session = connect(host(8080))
    const one = await h2(session, { ':path': '/hello?a=1' })
    assert.equal(one.status, 200)
    assert.equal(JSON.parse(one.text).url, '/hello?a=1')
    assert.equal(JSON.parse(one.text).headers['x-forwarded-proto'], 'https')
    const all = await Promise.all(Array.from({ length: 100 }, (_, i) => h2(session, { ':path': `/n/${i}` }, { body: Buffer.alloc(i * 997) })))
    all.forEach((r, i) => {
      const said = JSON.parse(r.text)
      assert.deepEqual([said.url, said.n, said.method], [`/n/${i}`, i * 997, 'POST'])
    })
    // Another place on the same connection is routed by its own authority, and an unknown one is told so.
    const gone = await h2(session, { ':path': '/', ':authority': `8080-i00000000000000000000.sbx.test:${port}` })
    assert.equal(gone.status, 502)
    const list = await h2(session, { ':path': '/v2/sandboxes', ':authority': `api.sbx.test:${port}`, 'x-api-key': sdk.apiKey })
    assert.equal(list.status, 200)
    session.close()
  })

  test('a gRPC port: h2c inside, trailers to the client', async () => {
    const session = connect(host(9090))
    const body = Buffer.concat([Buffer.from([0, 0, 0, 0, 5]), Buffer.from('hello')])
    const r = await h2(session, { ':path': '/pkg.Service/Call', 'content-type': 'application/grpc', te: 'trailers' }, { body })
    assert.equal(r.status, 200)
    assert.deepEqual(r.data, body)
    assert.equal(r.trailers['grpc-status'], '0')
    assert.equal(r.trailers['x-path'], '/pkg.Service/Call')
    const big = Buffer.alloc(3 << 20, 'g')
    assert.equal((await h2(session, { ':path': '/pkg.Service/Big', 'content-type': 'application/grpc' }, { body: big })).data.length, big.length)
    session.close()
  })

  test('a WebSocket over TLS', async () => {
    const socket = tls.connect({ port, host: '127.0.0.1', servername: host(8080), ca, ALPNProtocols: ['http/1.1'] })
    let got = ''
    socket.on('data', (d) => (got += d.toString('latin1')))
    socket.write(`GET / HTTP/1.1\r\nHost: ${host(8080)}:${port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n`)
    await until('the upgrade', () => got.includes('101 Switching Protocols'), { timeoutMs: 5000 })
    socket.write('frames go through')
    await until('the echo', () => got.endsWith('frames go through'), { timeoutMs: 5000 })
    socket.destroy()
  })

  test('5,000 half-open TLS connections: others are served, and they end', { timeout: 60_000 }, async (t) => {
    const flood = spawn('python3', ['-c', `
import socket, resource, time
resource.setrlimit(resource.RLIMIT_NOFILE, (min(6000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
kept = []
for i in range(5000):
    s = socket.socket(); s.setblocking(False)
    try: s.connect(('127.0.0.1', ${port}))
    except BlockingIOError: pass
    kept.append(s)
print('open', flush=True)
time.sleep(20)
`])
    t.after(() => flood.kill('SIGKILL'))
    await new Promise((resolve) => flood.stdout.once('data', resolve))
    for (let i = 0; i < 10; i++) {
      const session = connect(host(8080))
      const r = await h2(session, { ':path': '/alive' })
      session.destroy()
      assert.equal(r.status, 200, r.text)
    }
  })
})

describe('who may come in', () => {
  let sbx
  let http
  const at = async (p, headers = {}) => {
    const r = await http.request('GET', p, { headers: { 'e2b-sandbox-id': sbx.sandboxId, 'e2b-sandbox-port': '8080', ...headers } })
    return { ...r, body: String(r.body) }
  }
  before(async () => {
    http = api()
    sbx = await Sandbox.create('base', { ...sdk, timeoutMs: 300_000, network: { allowPublicTraffic: false } })
    await sbx.files.write('/tmp/app.cjs', APP)
    await sbx.commands.run('node /tmp/app.cjs', { background: true, timeoutMs: 0 })
    await until('the app serves', async () => (await at('/', { 'e2b-traffic-access-token': sbx.trafficAccessToken })).status === 200, { timeoutMs: 8000 })
  })
  after(() => sbx?.kill())

  test('51 without a token 403, with a wrong one 403, with the right one 200, and the port never sees it', async () => {
    const none = await at('/')
    assert.equal(none.status, 403)
    assert.match(none.body, /Token header 'e2b-traffic-access-token' is missing/)
    assert.match((await at('/', { 'e2b-traffic-access-token': 'x'.repeat(64) })).body, /is invalid/)
    const ok = await at('/', { 'e2b-traffic-access-token': sbx.trafficAccessToken })
    assert.equal(ok.status, 200)
    assert.ok(!ok.body.includes(sbx.trafficAccessToken))
    // envd has a token of its own.
    assert.equal((await sbx.commands.run('echo hi')).stdout, 'hi\n')
  })

  test('rotation: the old token ends, connect tells the new one', async () => {
    const old = sbx.trafficAccessToken
    const r = await http.json('POST', `/v1/sandboxes/${sbx.sandboxId}/traffic-token/rotate`, {})
    assert.ok(r.status < 300, JSON.stringify(r))
    assert.equal((await at('/', { 'e2b-traffic-access-token': old })).status, 403)
    const again = await Sandbox.connect(sbx.sandboxId, sdk)
    assert.notEqual(again.trafficAccessToken, old)
    assert.equal((await at('/', { 'e2b-traffic-access-token': again.trafficAccessToken })).status, 200)
  })

  test('preview links: good until they expire, for that port of that sandbox only', async () => {
    const made = await http.call('POST', `/v1/sandboxes/${sbx.sandboxId}/preview`, { port: 8080, expires_in: 60 })
    const link = new URL(made.url)
    const value = link.searchParams.get('hf_preview')
    assert.ok(value)
    const first = await at(`/page?hf_preview=${value}`)
    assert.equal(first.status, 303)
    const cookie = String(first.headers['set-cookie']).split(';')[0]
    const page = await at('/page', { cookie: `mine=1; ${cookie}` })
    assert.equal(page.status, 200)
    assert.equal(JSON.parse(page.body).headers.cookie, 'mine=1')
    assert.equal((await at('/page', { 'hf-preview': value })).status, 200)
    const [expiry, mac] = value.split('.')
    assert.equal((await at('/page', { 'hf-preview': `${Number(expiry) + 9999}.${mac}` })).status, 403)
    assert.equal((await at('/page', { 'hf-preview': value, 'e2b-sandbox-port': '9090' })).status, 403)
    const soon = await http.call('POST', `/v1/sandboxes/${sbx.sandboxId}/preview`, { port: 8080, expires_in: 1 })
    await new Promise((r) => setTimeout(r, 2100))
    assert.equal((await at('/page', { 'hf-preview': new URL(soon.url).searchParams.get('hf_preview') })).status, 403)
    await http.json('POST', `/v1/sandboxes/${sbx.sandboxId}/traffic-token/rotate`, {})
    assert.equal((await at('/page', { 'hf-preview': value })).status, 403)
  })

  test('60 another tenant finds nothing: 404 everywhere, as for an id that is none', async () => {
    const other = api(process.env.HF_E2E_KEY2)
    const ask = async (id) => Promise.all([
      other.json('GET', `/v1/sandboxes/${id}/network`),
      other.json('POST', `/v1/sandboxes/${id}/preview`, { port: 8080, expires_in: 60 }),
      other.json('POST', `/v1/sandboxes/${id}/traffic-token/rotate`, {}),
      other.json('PUT', `/sandboxes/${id}/network`, {}),
      other.json('GET', `/v1/sandboxes/${id}/outbound`),
      other.json('POST', `/v1/sandboxes/${id}/network/test`, { url: 'http://x.example/' }),
    ])
    const shape = (list, id) => list.map((r) => [r.status, JSON.stringify(r.json).replaceAll(id, 'ID')])
    const mine = shape(await ask(sbx.sandboxId), sbx.sandboxId)
    assert.deepEqual(mine, shape(await ask('i00000000000000000000'), 'i00000000000000000000'))
    mine.forEach(([status]) => assert.equal(status, 404))
    other.close()
  })
})
