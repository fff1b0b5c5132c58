// The servers of the tests' small internet (see internet.mjs): runs inside its namespace, is asked over a unix socket.
// argv: directory with ca.pem, cert.pem, key.pem, bad.pem, badkey.pem; it listens on <directory>/ctl.sock.
import dgram from 'node:dgram'
import fs from 'node:fs'
import http from 'node:http'
import http2 from 'node:http2'
import net from 'node:net'
import path from 'node:path'
import tls from 'node:tls'
import { createHash } from 'node:crypto'
import { startDns } from './dnsd.mjs'

const dir = process.argv[2]
const read = (name) => fs.readFileSync(path.join(dir, name))
const log = { dns: [], http: [], tcp: [], udp: [] }

// ---- names ----
const A = (...values) => values.map((value) => ({ type: value.includes(':') ? 'AAAA' : 'A', value }))
const hosts = {
  'allowed.example': A('198.51.100.10', '2001:db8:1::10'),
  'api.model.example': A('198.51.100.20', '2001:db8:1::20'),
  'other.example': A('198.51.100.30', '2001:db8:1::30'),
  'evil.example': A('203.0.113.66', '2001:db8:2::66'),
  'private.example': A('10.77.0.5'),
  'private6.example': A('fd77::5'),
  'meta.example': A('169.254.169.254'),
  'mapped.example': A('64:ff9b::a9fe:a9fe'),
  'mixed.example': A('198.51.100.31', '10.77.0.5'),
  'redirect.example': A('198.51.100.50'),
  'cdn-a.example': A('198.51.100.60'),
  'cdn-b.example': A('198.51.100.60'),
  'badcert.example': A('198.51.100.70'),
  'ssh443.example': A('198.51.100.80'),
  'db.example': A('198.51.100.90'),
  'host.corp.test': A('10.77.0.5'),
  'one.wild.example': A('198.51.100.11'),
  'a.b.wild.example': A('198.51.100.11'),
  'wild.example': A('198.51.100.12'),
  'allowed.example.evil.example': A('203.0.113.66'),
  'evilallowed.example': A('203.0.113.66'),
  'ttl1.example': A('198.51.100.41').map((r) => ({ ...r, ttl: 1 })),
  'many.example': Array.from({ length: 40 }, (_, i) => ({ type: 'A', value: `198.51.100.${100 + i}` })),
}
let rebinds = 0
function zone(name, type) {
  if (name === 'rebind.example') {
    // A public address at the first question, a private one ever after.
    if (type !== 'A') return []
    return [{ type: 'A', ttl: 0, value: rebinds++ === 0 ? '198.51.100.40' : '10.77.0.5' }]
  }
  if (name === 'alias.example') {
    const target = hosts['allowed.example'].filter((r) => r.type === type)
    return [{ type: 'CNAME', value: 'allowed.example' }, ...target.map((r) => ({ ...r, name: 'allowed.example' }))]
  }
  if (name === 'alias-evil.example') {
    return [{ type: 'CNAME', value: 'private.example' }, ...(type === 'A' ? [{ name: 'private.example', type: 'A', value: '10.77.0.5' }] : [])]
  }
  if (type === 'TXT' && hosts[name]) return [{ type: 'TXT', value: `text of ${name}` }]
  return hosts[name]?.filter((r) => r.type === type)
}

// ---- HTTP of every kind ----
function handle(req, res) {
  const secure = Boolean(req.socket.encrypted ?? req.stream?.session?.encrypted)
  const socket = req.stream?.session?.socket ?? req.socket
  const seen = {
    method: req.method,
    url: req.url,
    host: req.headers[':authority'] ?? req.headers.host,
    headers: { ...req.headers },
    raw: req.rawHeaders,
    secure,
    sni: socket.servername || '',
    version: req.httpVersion,
    to: socket.localAddress,
    from: socket.remoteAddress,
    at: Date.now(),
  }
  const url = new URL(req.url, 'http://x')
  const send = (status, headers, body) => {
    res.writeHead(status, headers)
    res.end(body)
  }
  let n = 0
  req.on('data', (d) => (n += d.length))
  req.on('error', () => {})
  req.on('end', () => {
    seen.body = n
    log.http.push(seen)
    if (url.pathname === '/redirect') return send(302, { location: url.searchParams.get('to') }, '')
    if (url.pathname.startsWith('/status/')) return send(Number(url.pathname.slice(8)), {}, 'status')
    if (url.pathname === '/big') return send(200, { 'content-type': 'application/octet-stream' }, Buffer.alloc(Number(url.searchParams.get('n') ?? 1 << 20), 'x'))
    if (url.pathname === '/slow') {
      // One line every 100 ms until the client goes.
      res.writeHead(200, { 'content-type': 'text/plain' })
      let i = 0
      const timer = setInterval(() => res.write(`tick ${i++}\n`), 100)
      res.on('close', () => clearInterval(timer))
      return
    }
    if (url.pathname === '/grpc') {
      res.writeHead(200, { 'content-type': 'application/grpc' })
      res.write(Buffer.from([0, 0, 0, 0, 0]))
      res.addTrailers?.({ 'grpc-status': '0' })
      return res.end()
    }
    if (url.pathname === '/latest/meta-data/') return send(200, {}, 'the metadata of this machine')
    // An honest origin does not tell its callers their own credential; an echo would be found in the sandbox.
    const { raw, ...told } = seen
    told.headers = { ...seen.headers }
    for (const name of ['authorization', 'x-key']) delete told.headers[name]
    send(200, { 'content-type': 'application/json' }, JSON.stringify(told))
  })
}

function upgrade(req, socket) {
  // A WebSocket that sends every byte back, frames untouched but for the mask.
  const key = createHash('sha1').update(`${req.headers['sec-websocket-key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest('base64')
  log.http.push({ method: req.method, url: req.url, host: req.headers.host, headers: req.headers, upgrade: true })
  socket.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${key}\r\n\r\n`)
  socket.on('data', (d) => socket.write(d))
  socket.on('error', () => {})
}

const up = []
const listen = (server, port, host) => up.push(new Promise((resolve, reject) => server.on('error', reject).listen({ port, host }, resolve)))
const counted = (server, what) =>
  server.on('connection', (s) => {
    s.on('error', () => {})
    log.tcp.push({ what, to: s.localAddress, port: s.localPort, from: s.remoteAddress, at: Date.now() })
  })

const quiet = (server) => server.on('clientError', () => {}).on('sessionError', () => {}).on('upgrade', upgrade)
const certificate = { cert: read('cert.pem'), key: read('key.pem') }
// What an address does on 443 when it is not an ordinary HTTPS origin.
const odd = {
  '198.51.100.70': () =>
    tls.createServer({ cert: read('bad.pem'), key: read('badkey.pem') }, (s) => {
      s.on('error', () => {})
      s.on('data', (d) => log.http.push({ badcert: d.toString('latin1') }))
    }),
  '198.51.100.80': () => net.createServer((s) => s.write('SSH-2.0-test\r\n')),
}
listen(counted(quiet(http.createServer({ keepAliveTimeout: 60_000 }, handle)), 'http'), 80, '::')
// One server that speaks first (5432), one echo (7).
listen(counted(net.createServer((s) => s.write('hello first\n').valueOf() && s.pipe(s)), 'banner'), 5432, '::')
listen(counted(net.createServer((s) => s.pipe(s)), 'echo'), 7, '::')
for (const address of process.argv.slice(3)) {
  const make = odd[address] ?? (() => quiet(http2.createSecureServer({ allowHTTP1: true, ...certificate }, handle)))
  listen(counted(make(), odd[address] ? 'odd' : 'https'), 443, address)
  // UDP echoes are bound to their address, so that the answer comes from where the question went.
  for (const port of [7, 443, 5353]) {
    const u = dgram.createSocket(address.includes(':') ? 'udp6' : 'udp4')
    u.on('message', (m, peer) => {
      log.udp.push({ port, to: address, from: peer.address, n: m.length })
      u.send(m, peer.port, peer.address)
    })
    up.push(new Promise((resolve) => u.bind(port, address, resolve)))
  }
}
// The public resolver, and one of a company for its own zone.
up.push(startDns(['198.51.100.53', '10.77.0.53'], zone, log.dns))

const ctl = http.createServer((req, res) => {
  if (req.method === 'DELETE') {
    for (const list of Object.values(log)) list.length = 0
    rebinds = 0
  }
  res.setHeader('content-type', 'application/json')
  res.end(JSON.stringify(log))
})
await Promise.all(up)
await new Promise((resolve) => ctl.listen(path.join(dir, 'ctl.sock'), resolve))
process.on('disconnect', () => process.exit(0)) // the test is gone
