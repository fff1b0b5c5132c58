// The data plane: ports of sandboxes through the daemon's one listener, and its strictness.
import assert from 'node:assert/strict'
import crypto from 'node:crypto'
import http from 'node:http'
import net from 'node:net'
import { after, before, describe, test } from 'node:test'
import { Sandbox } from 'e2b'
import { routed, sdk, url } from './lib/suite.mjs'
import { sleep, until } from './lib/http.mjs'

const { hostname, port } = new URL(url)

// One request with a Host of our choice: what a browser or an app does with getHost().
function viaHost(host, path = '/', opts = {}) {
  return new Promise((resolve, reject) => {
    const req = http.request({ host: hostname, port, path, method: opts.method ?? 'GET', agent: opts.agent, headers: { host, ...opts.headers } }, (res) => {
      const chunks = []
      res.on('data', (c) => chunks.push(c))
      res.on('end', () => resolve({ status: res.statusCode, headers: res.headers, body: Buffer.concat(chunks).toString() }))
      res.on('error', reject)
    })
    req.on('error', reject)
    req.end(opts.body)
  })
}

// Sends bytes, gives everything that comes back until the server closes or `ms` pass.
function raw(bytes, ms = 3000) {
  return new Promise((resolve, reject) => {
    const s = net.connect(Number(port), hostname)
    let got = ''
    const timer = setTimeout(() => s.destroy(), ms)
    s.on('data', (d) => (got += d.toString('latin1')))
    s.on('error', (e) => (e.code === 'ECONNRESET' || e.code === 'EPIPE' ? undefined : reject(e)))
    s.on('close', () => (clearTimeout(timer), resolve(got)))
    s.write(bytes)
  })
}

const SERVER = `
import http from 'node:http'
import crypto from 'node:crypto'
const s = http.createServer((req, res) => {
  const chunks = []
  req.on('data', (c) => chunks.push(c))
  req.on('end', () => {
    const body = Buffer.concat(chunks)
    if (req.url === '/big') { res.end(Buffer.alloc(20_000_000, 'z')); return }
    if (req.url === '/sse') { let i = 0; const t = setInterval(() => { res.write('data: ' + i + '\\n\\n'); if (++i === 5) { clearInterval(t); res.end() } }, 100); return }
    if (req.url === '/hang') { res.write('begun'); return }
    res.setHeader('x-app', 'yes')
    res.end(JSON.stringify({ method: req.method, url: req.url, host: req.headers.host, headers: req.headers, length: body.length, sha: crypto.createHash('sha256').update(body).digest('hex') }))
  })
})
s.on('upgrade', (req, socket) => {
  const accept = crypto.createHash('sha1').update(req.headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest('base64')
  socket.write('HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: ' + accept + '\\r\\n\\r\\n')
  socket.on('data', (d) => socket.write(d))
  socket.on('error', () => {})
})
s.listen(8080, '127.0.0.1', () => console.log('listening'))
`

describe('proxy', () => {
  let sbx
  let other
  before(async () => {
    ;[sbx, other] = await Promise.all([Sandbox.create('base', sdk), Sandbox.create('base', sdk)])
    for (const s of [sbx, other]) {
      await s.files.write('/tmp/server.mjs', SERVER)
      const h = await s.commands.run('exec node /tmp/server.mjs', { background: true, timeoutMs: 0 })
      await until('the server listens', () => h.stdout.includes('listening'), { timeoutMs: 20_000 })
    }
  })
  after(() => Promise.all([sbx?.kill(), other?.kill()]))
  const host = (s = sbx, p = 8080) => `${p}-${s.sandboxId}.sbx.test`

  test('getHost names a port; its Host reaches a server on 127.0.0.1 inside', async () => {
    assert.match(sbx.getHost(8080), new RegExp(`^8080-${sbx.sandboxId}\\.`))
    for (const h of [sbx.getHost(8080), host(), `${host()}:${port}`]) {
      const r = await viaHost(h, '/some/path?q=1')
      assert.equal(r.status, 200, `${h}: ${r.body}`)
      assert.equal(JSON.parse(r.body).url, '/some/path?q=1')
      assert.equal(r.headers['x-app'], 'yes')
    }
  })

  test('the two headers route as well', async () => {
    const r = await viaHost('127.0.0.1', '/', { headers: routed(sbx, 8080) })
    assert.equal(JSON.parse(r.body).method, 'GET')
  })

  test('bodies: POST with length, chunked, 20 MB down', async () => {
    const body = crypto.randomBytes(3_000_000)
    const sha = crypto.createHash('sha256').update(body).digest('hex')
    for (const headers of [{ 'content-length': body.length }, { 'transfer-encoding': 'chunked' }]) {
      const r = JSON.parse((await viaHost(host(), '/', { method: 'POST', body, headers })).body)
      assert.deepEqual([r.length, r.sha], [body.length, sha])
    }
    assert.equal((await viaHost(host(), '/big')).body.length, 20_000_000)
  })

  test('server-sent events come one by one', async () => {
    const times = []
    await new Promise((resolve, reject) => {
      http.get({ host: hostname, port, path: '/sse', headers: { host: host() } }, (res) => {
        res.on('data', () => times.push(performance.now()))
        res.on('end', resolve)
        res.on('error', reject)
      })
    })
    assert.ok(times.length >= 4 && times.at(-1) - times[0] > 250, `${times.length} pieces`)
  })

  test('one connection serves different sandboxes in turn', async () => {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 })
    for (const s of [sbx, other, sbx, other]) {
      const r = JSON.parse((await viaHost(host(s), '/', { agent })).body)
      assert.ok(r.host.includes(s.sandboxId) || r.headers['x-forwarded-host']?.includes(s.sandboxId), JSON.stringify(r))
    }
    const r = await viaHost('127.0.0.1', '/health', { agent })
    assert.equal(r.status, 200)
    agent.destroy()
  })

  test('WebSocket: handshake, frames both ways', async () => {
    const s = net.connect(Number(port), hostname)
    s.write(`GET /ws HTTP/1.1\r\nHost: ${host()}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n`)
    let got = Buffer.alloc(0)
    s.on('data', (d) => (got = Buffer.concat([got, d])))
    await until('101', () => got.includes('\r\n\r\n'))
    assert.match(got.toString('latin1'), /^HTTP\/1\.1 101 .*s3pPLMBiTxaQ9kYGzzhZRbK\+xOo=/s)
    const headEnd = got.indexOf('\r\n\r\n') + 4
    const payload = crypto.randomBytes(500_000)
    s.write(payload)
    await until('the echo', () => got.length - headEnd >= payload.length)
    assert.ok(got.subarray(headEnd).equals(payload))
    s.destroy()
  })

  test('a closed port and an unknown sandbox are 502 with their JSON', async () => {
    const closed = await viaHost(host(sbx, 9999))
    assert.equal(closed.status, 502)
    assert.deepEqual(JSON.parse(closed.body), { sandboxId: sbx.sandboxId, message: 'The sandbox is running but port is not open', port: 9999, code: 502 })
    const unknown = await viaHost('8080-inosuchsandbox00000000.sbx.test')
    assert.equal(unknown.status, 502)
    assert.equal(JSON.parse(unknown.body).message, 'The sandbox was not found')
    assert.equal(JSON.parse(unknown.body).code, 502)
  })

  test("envd's control routes are not reachable from outside", async () => {
    for (const path of ['/init', '/init/', '//init', '/%69nit', '/./init', '/x/../init', '/init?x=1', '/freeze', '/unfreeze', '/fsfreeze', '/upgrade']) {
      const r = await viaHost('127.0.0.1', path, { method: 'POST', body: '{"accessToken":"x"}', headers: { ...routed(sbx), 'content-type': 'application/json' } })
      assert.ok([400, 404].includes(r.status), `${path}: ${r.status} ${r.body}`)
    }
    // Nor from inside.
    const inside = await sbx.commands.run(`curl -s -o /dev/null -w '%{http_code}' -X POST -d '{}' http://127.0.0.1:49983/init`)
    assert.ok(['404', '401', '403'].includes(inside.stdout), inside.stdout)
    assert.equal((await sbx.commands.run('echo ok')).stdout, 'ok\n')
  })

  test('health through the data plane needs no token', async () => {
    const headers = { 'e2b-sandbox-id': sbx.sandboxId, 'e2b-sandbox-port': '49983' }
    assert.equal((await viaHost('127.0.0.1', '/health', { headers })).status, 204)
  })

  describe('strict parsing', () => {
    const refusedHeads = {
      'Content-Length and Transfer-Encoding': `POST / HTTP/1.1\r\nHost: H\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
      'two Content-Lengths': `POST / HTTP/1.1\r\nHost: H\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!`,
      'Transfer-Encoding other than chunked': `POST / HTTP/1.1\r\nHost: H\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n`,
      'space before the colon': `GET / HTTP/1.1\r\nHost: H\r\nX-A : b\r\n\r\n`,
      'a folded header': `GET / HTTP/1.1\r\nHost: H\r\nX-A: b\r\n c\r\n\r\n`,
      'a bare LF': `GET / HTTP/1.1\nHost: H\n\n`,
      'a NUL in a value': `GET / HTTP/1.1\r\nHost: H\r\nX-A: b\0c\r\n\r\n`,
      'a negative Content-Length': `POST / HTTP/1.1\r\nHost: H\r\nContent-Length: -5\r\n\r\n`,
      'no Host': `GET / HTTP/1.1\r\nX-A: b\r\n\r\n`,
      'two Hosts': `GET / HTTP/1.1\r\nHost: H\r\nHost: other\r\n\r\n`,
      'a bad chunk size': `POST / HTTP/1.1\r\nHost: H\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n`,
      garbage: '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03',
    }
    for (const [name, head] of Object.entries(refusedHeads))
      test(`${name} is refused`, async () => {
        const got = await raw(Buffer.from(head.replace('Host: H', `Host: ${host()}`), 'latin1'))
        assert.ok(got === '' || /^HTTP\/1\.1 400 /.test(got), JSON.stringify(got.slice(0, 200)))
        assert.ok(!/x-app/i.test(got), 'the request reached the sandbox')
      })

    test('a head over the limit is 431', async () => {
      const got = await raw(`GET / HTTP/1.1\r\nHost: ${host()}\r\n${`X-Fill: ${'a'.repeat(8000)}\r\n`.repeat(12)}\r\n`)
      assert.match(got, /^HTTP\/1\.1 431 /)
    })

    test('a slow-loris head is cut', { timeout: 30_000 }, async () => {
      const t0 = performance.now()
      const s = net.connect(Number(port), hostname)
      let closed = false
      s.on('error', () => {})
      s.on('close', () => (closed = true))
      s.resume()
      s.write(`GET / HTTP/1.1\r\nHost: ${host()}\r\n`)
      while (!closed && performance.now() - t0 < 25_000) {
        await sleep(500)
        if (!closed) s.write('X-A: b\r\n')
      }
      assert.ok(closed, 'a head that never ends was not cut in 25 s')
    })

    test('a smuggled second request does not reach the other sandbox', async () => {
      const hidden = `GET /smuggled HTTP/1.1\r\nHost: ${host(other)}\r\n\r\n`
      const got = await raw(`POST / HTTP/1.1\r\nHost: ${host()}\r\nContent-Length: ${hidden.length}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n${hidden}`)
      assert.ok(!got.includes('/smuggled'))
    })

    test('pipelined requests are answered in order', async () => {
      const one = (p) => `GET ${p} HTTP/1.1\r\nHost: ${host()}\r\n\r\n`
      const got = await raw(one('/first') + one('/second') + `GET /third HTTP/1.1\r\nHost: ${host()}\r\nConnection: close\r\n\r\n`)
      const order = [...got.matchAll(/"url":"(\/\w+)"/g)].map((m) => m[1])
      assert.deepEqual(order, ['/first', '/second', '/third'])
    })

    test('Expect: 100-continue', async () => {
      const got = await raw(`POST / HTTP/1.1\r\nHost: ${host()}\r\nExpect: 100-continue\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello`)
      assert.match(got, /^HTTP\/1\.1 (100 |200 )/)
      assert.match(got, /"length":5/)
    })
  })

  test('streams of a killed sandbox are cut abruptly', async () => {
    const s = await Sandbox.create('base', sdk)
    await s.files.write('/tmp/server.mjs', SERVER)
    const h = await s.commands.run('exec node /tmp/server.mjs', { background: true, timeoutMs: 0 })
    h.wait().catch(() => {})
    await until('the server listens', () => h.stdout.includes('listening'), { timeoutMs: 20_000 })
    const end = new Promise((resolve) => {
      http.get({ host: hostname, port, path: '/hang', headers: { host: host(s) } }, (res) => {
        res.on('data', () => {})
        res.on('end', () => resolve('clean end'))
        res.on('error', (e) => resolve(e.code ?? e.message))
      }).on('error', (e) => resolve(e.code ?? e.message))
    })
    await sleep(200)
    await s.kill()
    assert.notEqual(await end, 'clean end')
    assert.equal((await viaHost(host(s))).status, 502)
  })
})
