// What a sandbox reaches by address: the two switches, the lists, private ranges, metadata, the host, its neighbours.
// The numbers are those of the 72 probes that an attacker runs inside.
import assert from 'node:assert/strict'
import http from 'node:http'
import { describe, test } from 'node:test'
import { Sandbox } from 'e2b'
import { netbox, probe, tcp, udp, resolve, get } from './lib/net.mjs'
import { forget, seen } from './lib/internet.mjs'
import { api, rejects, sdk, url } from './lib/suite.mjs'
import { until } from './lib/http.mjs'

const PUBLIC = '198.51.100.10'
const PRIVATE = ['10.77.0.5', '172.16.9.9', '192.168.9.9', '100.64.9.9', 'fd77::5']
const METADATA = ['169.254.169.254', '100.100.100.200', 'fd00:ec2::254', '::ffff:169.254.169.254', '64:ff9b::a9fe:a9fe']
const DENIED = /^(refused|prohibited|unreachable|no route)$/
const ALL = ['0.0.0.0/0', '::/0']

async function serveOnHost() {
  const server = http.createServer((q, s) => s.end('a service of the host'))
  await new Promise((resolve) => server.listen(0, '::', resolve))
  return server
}

const denied = (results, what) => results.forEach((r, i) => assert.match(String(r), DENIED, `${what[i]}: ${r}`))

test('internet on is the default: public addresses by name and number, both families', async (t) => {
  const sbx = await netbox(t)
  const r = await probe(sbx, tcp(PUBLIC), tcp('2001:db8:1::10'), udp(PUBLIC), resolve('allowed.example'), get('http://other.example/x'), tcp(PUBLIC, 5432, { read: 64 }))
  assert.deepEqual(r.slice(0, 4), ['open', 'open', 'open:ping', ['198.51.100.10', '2001:db8:1::10']])
  assert.equal(r[4].status, 200)
  assert.equal(r[5], 'open:hello first\n')
  const info = await api().call('GET', `/sandboxes/${sbx.sandboxId}`)
  assert.equal(info.allowInternetAccess, true)
})

test('39 network off: no interface, no route, no name, no packet', async (t) => {
  const sbx = await netbox(t, { allowInternetAccess: false })
  await until('the interface is gone', async () => (await probe(sbx, ['interfaces', {}]))[0].length === 1, { timeoutMs: 3000 })
  await forget()
  const r = await probe(sbx, ['interfaces', {}], ['routes', {}], ['families', {}], tcp(PUBLIC), tcp('2001:db8:1::10'), udp(PUBLIC), resolve('allowed.example'))
  assert.deepEqual(r.slice(0, 3), [['lo'], 0, []])
  assert.deepEqual(r.slice(3, 6), ['no route', 'no route', 'no route'])
  assert.equal(r[6], 'again')
  const out = await seen()
  assert.deepEqual([out.dns, out.tcp, out.udp], [[], [], []])
  assert.equal((await api().call('GET', `/sandboxes/${sbx.sandboxId}`)).allowInternetAccess, false)
})

describe('40 metadata and link-local in every mode', () => {
  const modes = {
    'internet on': {},
    'everything allowed': { network: { allowOut: [...ALL, '169.0.0.0/8', '100.0.0.0/8', '100.64.0.0/10', 'fc00::/7'] } },
    'denied but one': { network: { denyOut: ALL, allowOut: [PUBLIC] } },
  }
  for (const [name, opts] of Object.entries(modes))
    test(name, async (t) => {
      const sbx = await netbox(t, opts)
      await forget()
      denied(await probe(sbx, ...METADATA.map((a) => tcp(a))), METADATA)
      // The forms that a library turns into the address: what curl makes of them.
      for (const form of ['2852039166', '0xa9fea9fe', '0251.0376.0251.0376', '169.254.43518'])
        assert.notEqual((await sbx.commands.run(`curl -s -m 3 http://${form}/latest/meta-data/ || true`)).stdout, 'the metadata of this machine')
      assert.deepEqual((await seen()).http, [])
    })
})

test('40 a rule that names such an address is refused, with the reason', async () => {
  for (const a of ['169.254.169.254', '169.254.0.0/16', '127.0.0.1', 'fe80::1', '100.100.100.200'])
    await rejects(Sandbox.create('base', { ...sdk, network: { allowOut: [a] } }), 'SandboxError', /400: .*which no policy opens/)
})

test('41 loopback, the host, its gateway, private ranges: closed by default', async (t) => {
  const service = await serveOnHost()
  t.after(() => service.close())
  const port = service.address().port
  const sbx = await netbox(t)
  const targets = [...PRIVATE.map((a) => [a, 80]), ...['192.0.2.2', '2001:db8::2', '10.118.0.1', '10.117.255.254', '224.0.0.1', '255.255.255.255', '240.1.1.1'].map((a) => [a, port])]
  const r = await probe(sbx, ...targets.map(([a, p]) => tcp(a, p)), tcp('127.0.0.1', port), tcp('0.0.0.0', port), tcp('::1', port))
  r.forEach((x, i) => assert.notEqual(String(x).slice(0, 4), 'open', `${targets[i] ?? 'loopback'}: ${x}`))
  const [gateway] = (await sbx.commands.run("ip -4 route show default 2>/dev/null | awk '{print $3}' || true")).stdout.split('\n')
  if (gateway) denied(await probe(sbx, tcp(gateway, port)), [gateway])
})

test('41 the host and one private address, each explicitly allowed, work; their neighbours do not', async (t) => {
  const service = await serveOnHost()
  t.after(() => service.close())
  const port = service.address().port
  const sbx = await netbox(t, { network: { allowOut: ['192.0.2.2', '10.77.0.5', 'fd77::5'] } })
  const r = await probe(sbx, get(`http://192.0.2.2:${port}/`), tcp('10.77.0.5'), tcp('fd77::5'), tcp('10.77.0.53'), tcp('192.168.9.9'), tcp('2001:db8::2', port))
  assert.equal(r[0].body, 'a service of the host')
  assert.deepEqual(r.slice(1, 3), ['open', 'open'])
  denied(r.slice(3), ['10.77.0.53', '192.168.9.9', 'host by v6'])
})

test('a wide prefix does not open private ranges, a private prefix does', async (t) => {
  const [wide, lan] = await Promise.all([
    netbox(t, { network: { allowOut: ['0.0.0.0/0', '8.0.0.0/5'] } }),
    netbox(t, { network: { denyOut: ALL, allowOut: ['10.77.0.0/24'] } }),
  ])
  const r = await probe(wide, tcp(PUBLIC), tcp('10.77.0.5'))
  assert.equal(r[0], 'open')
  assert.match(r[1], DENIED)
  const q = await probe(lan, tcp('10.77.0.5'), tcp('10.77.0.53', 53), tcp(PUBLIC), tcp('172.16.9.9'))
  assert.deepEqual(q.slice(0, 2), ['open', 'open'])
  denied(q.slice(2), [PUBLIC, '172.16.9.9'])
})

test('allow beats deny beats default', async (t) => {
  const sbx = await netbox(t, { network: { denyOut: ['198.51.100.0/24', '2001:db8:1::/48'], allowOut: ['198.51.100.20'] } })
  const r = await probe(sbx, tcp('198.51.100.20'), tcp('203.0.113.66'), tcp('198.51.100.30'), tcp('2001:db8:1::30'), tcp('2001:db8:2::66'))
  assert.deepEqual([r[0], r[1], r[4]], ['open', 'open', 'open'])
  denied(r.slice(2, 4), ['denied v4', 'denied v6'])
})

test('50 a neighbour is out of reach on every address; a stolen source address reaches nothing', async (t) => {
  const [a, b] = await Promise.all([netbox(t, { network: { allowOut: ['10.117.0.0/16', 'fd68:6f6c:6466:1::/64'] } }), netbox(t)])
  await b.commands.run('python3 -m http.server 8000 --bind ::', { background: true, timeoutMs: 0 })
  const [b4, b6] = await probe(b, ['address', { family: 4 }], ['address', { family: 6 }])
  await until('the neighbour serves', async () => (await probe(b, tcp(b4, 8000)))[0] === 'open', { timeoutMs: 5000 })
  denied(await probe(a, tcp(b4, 8000), tcp(b6, 8000)), [b4, b6])
  await forget()
  const [spoofed] = await probe(a, ['freebind', { source: b4, host: PUBLIC, port: 5353 }])
  assert.notEqual(spoofed, 'open:spoofed')
  assert.deepEqual((await seen()).udp, [])
})

test('51 the API, the data plane and a stranger’s preview are out of reach', async (t) => {
  const mine = await netbox(t, { network: { allowOut: ALL } })
  const port = Number(new URL(url).port)
  denied(await probe(mine, tcp('192.0.2.2', port), tcp('2001:db8::2', port)), ['API v4', 'API v6'])
})

test('52 a connection flood stops at the cap; the host and the neighbour go on', async (t) => {
  const [a, b] = await Promise.all([netbox(t), netbox(t)])
  await a.commands.run('ulimit -n 60000 2>/dev/null || ulimit -n $(ulimit -Hn); true')
  const [flood, calm] = await Promise.all([
    a.commands.run(`python3 -c "
import socket
kept=[]
refused=0
for i in range(9000):
    s=socket.socket(); s.settimeout(0.5)
    try: s.connect(('${PUBLIC}', 7)); kept.append(s)
    except OSError: refused+=1; s.close()
    if refused>50 or len(kept)>8000: break
print(len(kept), refused)
"`, { timeoutMs: 60_000 }).catch((e) => e),
    probe(b, tcp(PUBLIC, 7)),
  ])
  assert.equal(calm[0], 'open:x')
  const made = Number(String(flood.stdout).split(' ')[0])
  assert.ok(made > 100 && made <= 4200, `connections made: ${flood.stdout} ${flood.stderr ?? ''}`)
  assert.equal((await probe(b, tcp(PUBLIC, 7)))[0], 'open:x')
})

test('53 a denial is counted and recorded with sandbox and reason', async (t) => {
  const sbx = await netbox(t, { metadata: { probe: '53' } })
  await probe(sbx, tcp('10.77.0.5', 4444))
  const http = api()
  const record = await until('the record is there', async () => {
    const list = await http.call('GET', `/v1/sandboxes/${sbx.sandboxId}/outbound`)
    return (list.outbound ?? list.items ?? list.data ?? list).find((r) => r.port === 4444)
  }, { timeoutMs: 10_000 })
  assert.equal(record.addr, '10.77.0.5')
  assert.equal(record.reason, 'private')
  assert.equal(record.sandbox, sbx.sandboxId)
  const net = await http.call('GET', `/v1/sandboxes/${sbx.sandboxId}/network`)
  assert.ok(net.counters.denied >= 1, JSON.stringify(net))
})

describe('PUT network', () => {
  test('holds for flows that are open, from their next packet, both ways round', async (t) => {
    const sbx = await netbox(t)
    const running = probe(sbx, ['flow', { host: '198.51.100.30', port: 7, seconds: 4 }], ['flow', { host: '198.51.100.20', port: 7, seconds: 4 }])
    await new Promise((r) => setTimeout(r, 1500))
    await sbx.updateNetwork({ denyOut: ['198.51.100.30'] })
    const [cut, kept] = await running
    assert.ok(cut.last > 0.5 && cut.last < 3.5, JSON.stringify(cut))
    assert.match(cut.end, /reset|refused|timeout|prohibited/)
    assert.equal(kept.end, 'alive')
    await sbx.updateNetwork({})
    assert.equal((await probe(sbx, tcp('198.51.100.30')))[0], 'open')
  })

  test('off and on again at run time', async (t) => {
    const sbx = await netbox(t)
    await sbx.updateNetwork({ allowInternetAccess: false })
    denied(await probe(sbx, tcp(PUBLIC)), ['off'])
    await sbx.updateNetwork({ allowInternetAccess: true })
    await until('on again', async () => (await probe(sbx, tcp(PUBLIC)))[0] === 'open', { timeoutMs: 3000 })
  })

  test('from a sandbox that began without a network', async (t) => {
    const sbx = await netbox(t, { allowInternetAccess: false })
    await sbx.updateNetwork({ denyOut: ALL, allowOut: [PUBLIC] })
    await until('on', async () => (await probe(sbx, tcp(PUBLIC)))[0] === 'open', { timeoutMs: 3000 })
    denied(await probe(sbx, tcp('198.51.100.20')), ['not allowed'])
  })

  test('a bad update changes nothing and says what is wrong', async (t) => {
    const sbx = await netbox(t, { network: { denyOut: ALL, allowOut: [PUBLIC] } })
    await rejects(sbx.updateNetwork({ denyOut: ['not-an-address'] }), 'SandboxError', /400: invalid denied CIDR not-an-address/)
    assert.equal((await probe(sbx, tcp(PUBLIC)))[0], 'open')
    await rejects(Sandbox.updateNetwork('i00000000000000000000', {}, sdk), 'SandboxNotFoundError')
  })
})

test('1,000 entries: all of them hold', async (t) => {
  const deny = Array.from({ length: 1000 }, (_, i) => `${i % 2 ? '203.0' : '198.18'}.${(i >> 1) % 256}.${(i * 7) % 250}/32`)
  const sbx = await netbox(t, { network: { denyOut: [...deny, '203.0.113.66/32'], allowOut: Array.from({ length: 999 }, (_, i) => `100.${64 + (i >> 8)}.${i & 255}.9/32`) } })
  const r = await probe(sbx, tcp('203.0.113.66'), tcp('203.0.113.80'), tcp(PUBLIC), tcp('100.64.9.9'))
  assert.deepEqual(r, ['refused', 'open', 'open', 'open'])
})
