// What the JS SDK never sends but other clients do: v1 paths, the binary codec, odd encodings, legacy routes.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { Sandbox } from 'e2b'
import { api, dataPlane, sdk } from './lib/suite.mjs'

// The few pieces of protobuf that these tests need.
const varint = (n) => {
  const out = []
  for (; n > 127; n = Math.floor(n / 128)) out.push((n % 128) | 128)
  return Buffer.from([...out, n])
}
const field = (no, data) => {
  const b = Buffer.isBuffer(data) ? data : Buffer.from(data)
  return Buffer.concat([varint(no * 8 + 2), varint(b.length), b])
}
function decode(b) {
  const out = []
  let i = 0
  const next = () => {
    let n = 0
    let m = 1
    for (;;) {
      const x = b[i++]
      n += (x & 127) * m
      m *= 128
      if (x < 128) return n
    }
  }
  while (i < b.length) {
    const tag = next()
    if ((tag & 7) === 0) out.push([tag >> 3, next()])
    else {
      const n = next()
      out.push([tag >> 3, b.subarray(i, (i += n))])
    }
  }
  return out
}
const get = (message, no) => decode(message).find(([k]) => k === no)?.[1]
const envelope = (b) => {
  const head = Buffer.alloc(5)
  head.writeUInt32BE(b.length, 1)
  return Buffer.concat([head, b])
}
function envelopes(b) {
  const out = []
  for (let i = 0; i < b.length; ) {
    const n = b.readUInt32BE(i + 1)
    out.push({ flags: b[i], data: b.subarray(i + 5, i + 5 + n) })
    i += 5 + n
  }
  return out
}

describe('raw protocol', () => {
  let sbx
  let control
  let data
  before(async () => {
    sbx = await Sandbox.create('base', sdk)
    control = api()
    data = dataPlane(sbx)
  })
  after(async () => {
    await sbx?.kill()
    control?.close()
    data?.close()
  })

  test('v1 create, connect, list, timeout, refreshes, kill', async () => {
    const made = await control.json('POST', '/sandboxes', { templateID: 'base', timeout: 60, secure: true, allow_internet_access: true, metadata: { v: '1' } })
    assert.equal(made.status, 201, JSON.stringify(made.json))
    const { sandboxID, clientID, envdVersion, envdAccessToken, templateID } = made.json
    assert.ok(sandboxID && clientID && envdAccessToken && templateID)
    assert.match(envdVersion, /^\d+\.\d+\.\d+$/)
    const connected = await control.json('POST', `/sandboxes/${sandboxID}/connect`, { timeout: 60 })
    assert.equal(connected.status, 200)
    assert.equal(connected.json.sandboxID, sandboxID)
    // Old clients name a sandbox with the client id behind it.
    assert.equal((await control.json('GET', `/sandboxes/${sandboxID}-${clientID}`)).status, 200)
    assert.equal((await control.json('GET', `/sandboxes/${sandboxID}-a-b`)).status, 400)
    const list = await control.call('GET', '/sandboxes?metadata=v%3D1')
    assert.ok(list.some((s) => s.sandboxID === sandboxID))
    assert.equal((await control.json('POST', `/sandboxes/${sandboxID}/timeout`, { timeout: 90 })).status, 204)
    assert.equal((await control.json('POST', `/sandboxes/${sandboxID}/refreshes`, { duration: 100 })).status, 204)
    assert.equal((await control.json('DELETE', `/sandboxes/${sandboxID}`)).status, 204)
    const gone = await control.json('DELETE', `/sandboxes/${sandboxID}`)
    assert.deepEqual([gone.status, gone.json.code], [404, 404])
  })

  test('no key, wrong key, bearer where a key is wanted: 401 with a body', async () => {
    for (const headers of [{ 'x-api-key': '' }, { 'x-api-key': 'nonsense' }, { 'x-api-key': `e2b_${'f'.repeat(40)}` }]) {
      const r = await control.json('GET', '/v2/sandboxes', undefined, { headers })
      assert.equal(r.status, 401)
      assert.equal(r.json.code, 401)
    }
  })

  test('health needs no key', async () => {
    const r = await control.request('GET', '/health', { headers: { 'x-api-key': '' } })
    assert.ok([200, 204].includes(r.status))
  })

  test('list refuses nonsense', async () => {
    for (const q of ['limit=0', 'limit=101', 'limit=x', 'nextToken=garbage', 'state=flying', 'order=sideways', 'metadata=novalue'])
      assert.equal((await control.json('GET', `/v2/sandboxes?${q}`)).status, 400, q)
  })

  test('logs, both generations', async () => {
    await sbx.commands.run('echo logged')
    const v1 = await control.call('GET', `/sandboxes/${sbx.sandboxId}/logs?limit=10`)
    assert.ok(Array.isArray(v1.logs))
    const v2 = await control.call('GET', `/v2/sandboxes/${sbx.sandboxId}/logs?limit=10&direction=forward`)
    assert.ok(Array.isArray(v2.logs))
  })

  test('metrics of several sandboxes', async () => {
    const r = await control.call('GET', `/sandboxes/metrics?sandbox_ids=${sbx.sandboxId}`)
    assert.ok('sandboxes' in r)
  })

  test('unknown routes and methods are JSON 404 or 405', async () => {
    for (const [m, p] of [['GET', '/nope'], ['PATCH', '/v2/sandboxes'], ['GET', '/v1/nope']]) {
      const r = await control.json(m, p)
      assert.ok([404, 405].includes(r.status), `${m} ${p}: ${r.status}`)
      assert.ok(r.json.message.length > 0)
    }
  })

  test('binary codec: unary', async () => {
    const r = await data.request('POST', '/filesystem.Filesystem/Stat', { headers: { 'content-type': 'application/proto', 'connect-protocol-version': '1' }, body: field(1, '/etc/hostname') })
    assert.equal(r.status, 200, r.body.toString())
    assert.equal(r.headers['content-type'], 'application/proto')
    const entry = get(r.body, 1)
    assert.equal(get(entry, 1).toString(), 'hostname')
    assert.equal(get(entry, 2), 1)
    assert.equal(get(entry, 3).toString(), '/etc/hostname')
    const missing = await data.request('POST', '/filesystem.Filesystem/Stat', { headers: { 'content-type': 'application/proto' }, body: field(1, '/no/such') })
    assert.equal(missing.status, 404)
    assert.equal(JSON.parse(missing.body).code, 'not_found')
  })

  test('binary codec: a stream with start, data, end; the exit code is zigzag', async () => {
    const config = Buffer.concat([field(1, '/bin/sh'), field(2, '-c'), field(2, 'echo out; echo err >&2; exit 3'), field(3, Buffer.concat([field(1, 'K'), field(2, 'v')]))])
    const r = await data.request('POST', '/process.Process/Start', { headers: { 'content-type': 'application/connect+proto', 'connect-protocol-version': '1' }, body: envelope(field(1, config)) })
    assert.equal(r.status, 200, r.body.toString())
    assert.equal(r.headers['content-type'], 'application/connect+proto')
    const all = envelopes(r.body)
    assert.equal(all.at(-1).flags, 2)
    assert.deepEqual(JSON.parse(all.at(-1).data), {})
    const events = all.slice(0, -1).map((e) => get(e.data, 1))
    assert.ok(get(get(events[0], 1), 1) > 0, 'the first message is start with the pid')
    const out = { 1: '', 2: '' }
    for (const e of events) {
      const d = get(e, 2)
      if (d) for (const [no, bytes] of decode(d)) out[no] += bytes.toString()
    }
    assert.deepEqual(out, { 1: 'out\n', 2: 'err\n' })
    const end = get(events.at(-1), 3)
    assert.equal(get(end, 1), 6, 'exit code 3 as zigzag')
    assert.equal(get(end, 3).toString(), 'exit status 3')
  })

  test('CreateWatcher, GetWatcherEvents, RemoveWatcher', async () => {
    const rpc = (m, v) => data.json('POST', `/filesystem.Filesystem/${m}`, v)
    await sbx.files.makeDir('/home/user/polled')
    const { json } = await rpc('CreateWatcher', { path: '/home/user/polled' })
    assert.ok(json.watcherId)
    await sbx.files.write('/home/user/polled/f', 'x')
    let events = []
    for (let i = 0; i < 50 && events.length === 0; i++) events = (await rpc('GetWatcherEvents', { watcherId: json.watcherId })).json.events ?? []
    assert.ok(events.some((e) => e.name === 'f' && e.type === 'EVENT_TYPE_CREATE'), JSON.stringify(events))
    assert.equal((await rpc('RemoveWatcher', { watcherId: json.watcherId })).status, 200)
    const gone = await rpc('GetWatcherEvents', { watcherId: json.watcherId })
    assert.deepEqual([gone.status, gone.json.code], [404, 'not_found'])
  })

  test('StreamInput feeds stdin; selectors by tag', async () => {
    const bg = data.request('POST', '/process.Process/Start', {
      headers: { 'content-type': 'application/connect+json' },
      body: envelope(Buffer.from(JSON.stringify({ process: { cmd: '/bin/sh', args: ['-c', 'cat > /tmp/streamed'] }, tag: 'feeder', stdin: true }))),
    })
    for (let i = 0; i < 100 && !(await data.json('POST', '/process.Process/List', {})).json.processes?.some((p) => p.tag === 'feeder'); i++);
    const parts = [{ start: { process: { tag: 'feeder' } } }, { data: { input: { stdin: Buffer.from('one ').toString('base64') } } }, { keepalive: {} }, { data: { input: { stdin: Buffer.from('two').toString('base64') } } }]
    const r = await data.request('POST', '/process.Process/StreamInput', { headers: { 'content-type': 'application/connect+json' }, body: Buffer.concat(parts.map((p) => envelope(Buffer.from(JSON.stringify(p))))) })
    assert.equal(r.status, 200)
    assert.equal((await data.json('POST', '/process.Process/CloseStdin', { process: { tag: 'feeder' } })).status, 200)
    await bg
    assert.equal(await sbx.files.read('/tmp/streamed'), 'one two')
    const none = await data.json('POST', '/process.Process/SendSignal', { process: { tag: 'nobody' }, signal: 'SIGNAL_SIGTERM' })
    assert.deepEqual([none.status, none.json.message], [404, 'process with tag nobody not found'])
  })

  test('snake_case, numbers for enums and int64, unknown fields, null', async () => {
    const r = await data.json('POST', '/filesystem.Filesystem/ListDir', { path: '/etc', depth: '1', unknown_field: { x: 1 } })
    assert.equal(r.status, 200, JSON.stringify(r.json))
    const w = await data.json('POST', '/filesystem.Filesystem/CreateWatcher', { path: '/tmp', recursive: null, include_entry: true })
    assert.equal(w.status, 200)
    await data.json('POST', '/filesystem.Filesystem/RemoveWatcher', { watcher_id: w.json.watcherId })
  })

  test('malformed input: JSON, protobuf, envelopes', async () => {
    const bad = [
      ['/filesystem.Filesystem/Stat', 'application/json', '{'],
      ['/filesystem.Filesystem/Stat', 'application/json', '{"path":7}'],
      ['/filesystem.Filesystem/Stat', 'application/proto', Buffer.from([0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f])],
      ['/filesystem.Filesystem/Stat', 'text/plain', 'x'],
      ['/process.Process/SendSignal', 'application/json', '{"process":{"pid":1,"tag":"x"},"signal":"SIGNAL_NONSENSE"}'],
    ]
    for (const [path, type, body] of bad) {
      const r = await data.request('POST', path, { headers: { 'content-type': type }, body })
      assert.ok([400, 415].includes(r.status), `${path} ${type}: ${r.status} ${r.body}`)
    }
    const streams = [Buffer.from([0, 0, 0, 0]), Buffer.from([0, 255, 255, 255, 255, 1]), envelope(Buffer.from('{')), Buffer.concat([envelope(Buffer.from('{}')), envelope(Buffer.from('{}'))])]
    for (const body of streams) {
      const r = await data.request('POST', '/process.Process/Start', { headers: { 'content-type': 'application/connect+json' }, body })
      const error = r.status === 200 ? JSON.parse(envelopes(r.body).at(-1).data).error : JSON.parse(r.body)
      assert.ok(error?.code, `${body.toString('hex')}: ${r.status} ${r.body}`)
    }
    assert.equal((await sbx.commands.run('echo alive')).stdout, 'alive\n')
  })

  test('uploads that are wrong say why', async () => {
    const up = (headers, body, q = '?path=x') => data.request('POST', `/files${q}`, { headers, body })
    assert.equal((await up({ 'content-type': 'text/plain' }, 'x')).status, 400)
    assert.equal((await up({ 'content-type': 'application/octet-stream', 'content-encoding': 'gzip' }, 'not gzip')).status, 400)
    assert.equal((await up({ 'content-type': 'application/octet-stream' }, 'x', '')).status, 400)
    assert.equal((await up({ 'content-type': 'multipart/form-data' }, 'x')).status, 400)
    const twice = '--b\r\nContent-Disposition: form-data; name="file"; filename="same"\r\n\r\n1\r\n--b\r\nContent-Disposition: form-data; name="file"; filename="same"\r\n\r\n2\r\n--b--\r\n'
    const r = await up({ 'content-type': 'multipart/form-data; boundary=b' }, twice, '')
    assert.equal(r.status, 400)
    assert.match(JSON.parse(r.body).message, /multiple files to the same path/)
  })

  test('envs and metrics of envd', async () => {
    const m = await data.call('GET', '/metrics')
    for (const k of ['ts', 'cpu_count', 'cpu_used_pct', 'mem_total', 'mem_used', 'disk_used', 'disk_total']) assert.equal(typeof m[k], 'number', k)
    const e = await data.call('GET', '/envs')
    assert.equal(typeof e, 'object')
  })
})
