// The control plane through the published SDK: create, connect, list, info, timeouts, kill, tenants, what is not there.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sandbox } from 'e2b'
import { api, box, otherSdk, rejects, sdk } from './lib/suite.mjs'
import { sleep, until } from './lib/http.mjs'

const unique = () => Math.random().toString(36).slice(2, 12)

async function all(paginator) {
  const items = []
  while (paginator.hasNext) items.push(...(await paginator.nextItems()))
  return items
}

test('create, getInfo, isRunning, kill', async (t) => {
  const before = Date.now()
  const sbx = await box(t, { metadata: { purpose: 'info' }, timeoutMs: 120_000 })
  assert.match(sbx.sandboxId, /^[a-z0-9]{8,40}$/)
  const info = await sbx.getInfo()
  assert.equal(info.sandboxId, sbx.sandboxId)
  assert.equal(info.state, 'running')
  assert.deepEqual(info.metadata, { purpose: 'info' })
  assert.ok(info.cpuCount >= 1 && info.memoryMB >= 64)
  assert.ok(Math.abs(info.startedAt.getTime() - before) < 30_000)
  const life = info.endAt.getTime() - info.startedAt.getTime()
  assert.ok(life > 115_000 && life < 130_000, `lives ${life} ms`)
  assert.equal(await sbx.isRunning(), true)
  assert.equal(await sbx.kill(), true)
  assert.equal(await sbx.isRunning(), false)
  assert.equal(await sbx.kill(), false)
  await rejects(sbx.getInfo(), 'SandboxNotFoundError')
})

test('an unknown template is 404 with its name', async () => {
  await rejects(Sandbox.create('no-such-template', sdk), 'SandboxError', /no-such-template.*not found/)
})

test('a wrong API key is refused', async () => {
  await rejects(Sandbox.create('base', { ...sdk, apiKey: `e2b_${'0'.repeat(40)}` }), 'AuthenticationError')
})

test('connect: same sandbox, working; unknown id', async (t) => {
  const sbx = await box(t)
  await sbx.files.write('x', 'from the first handle')
  const again = await Sandbox.connect(sbx.sandboxId, sdk)
  assert.equal(again.sandboxId, sbx.sandboxId)
  assert.equal(await again.files.read('x'), 'from the first handle')
  await rejects(Sandbox.connect('i0000000000nothere', sdk), 'SandboxNotFoundError')
})

test('connect never shortens the life, and extends it', async (t) => {
  const sbx = await box(t, { timeoutMs: 600_000 })
  const end = (await sbx.getInfo()).endAt.getTime()
  await Sandbox.connect(sbx.sandboxId, { ...sdk, timeoutMs: 10_000 })
  assert.equal((await sbx.getInfo()).endAt.getTime(), end)
  await Sandbox.connect(sbx.sandboxId, { ...sdk, timeoutMs: 1_200_000 })
  assert.ok((await sbx.getInfo()).endAt.getTime() > end + 500_000)
})

test('setTimeout moves the end both ways, and the sandbox ends on time', async (t) => {
  const sbx = await box(t, { timeoutMs: 600_000 })
  await sbx.setTimeout(1_200_000)
  const far = (await sbx.getInfo()).endAt.getTime()
  assert.ok(Math.abs(far - Date.now() - 1_200_000) < 10_000)
  await sbx.setTimeout(2_000)
  const t0 = performance.now()
  await until('it has ended', async () => !(await sbx.isRunning()), { timeoutMs: 10_000, everyMs: 50 })
  const took = performance.now() - t0
  assert.ok(took > 1_000 && took < 4_000, `ended after ${took} ms`)
  await rejects(sbx.getInfo(), 'SandboxNotFoundError')
})

test('a sandbox ends at the timeout of its create', async () => {
  const sbx = await Sandbox.create('base', { ...sdk, timeoutMs: 2_000 })
  await until('it has ended', async () => !(await sbx.isRunning()), { timeoutMs: 10_000, everyMs: 50 })
})

test('list: metadata filter, states, pagination, order', async (t) => {
  const tag = unique()
  const odd = { 'key with space & =': 'välue/%+&', tag }
  const made = []
  for (let i = 0; i < 5; i++) made.push((await box(t, { metadata: i === 0 ? odd : { tag, n: String(i) } })).sandboxId)
  const ids = async (query, opts = {}) => (await all(Sandbox.list({ ...sdk, query, ...opts }))).map((s) => s.sandboxId)
  assert.deepEqual((await ids({ metadata: { tag } })).sort(), [...made].sort())
  assert.deepEqual(await ids({ metadata: odd }), [made[0]])
  assert.deepEqual(await ids({ metadata: { tag, n: '3' } }), [made[3]])
  assert.deepEqual(await ids({ metadata: { tag: 'none' } }), [])
  assert.equal((await ids({ metadata: { tag }, state: ['running'] })).length, 5)
  assert.deepEqual(await ids({ metadata: { tag }, state: ['paused'] }), [])
  assert.equal((await ids({ metadata: { tag }, template: 'base' })).length, 5)
  assert.deepEqual(await ids({ metadata: { tag }, template: 'no-such' }), [])

  const pages = Sandbox.list({ ...sdk, query: { metadata: { tag } }, limit: 2 })
  const sizes = []
  const seen = []
  while (pages.hasNext) {
    const page = await pages.nextItems()
    sizes.push(page.length)
    seen.push(...page.map((s) => s.sandboxId))
  }
  assert.deepEqual(sizes.filter((n) => n > 0), [2, 2, 1])
  assert.equal(new Set(seen).size, 5)
  assert.deepEqual(seen, [...made].reverse(), 'newest first')
  assert.deepEqual(await ids({ metadata: { tag } }, { order: 'asc', limit: 2 }), made, 'oldest first')
})

test('list: a sandbox is gone from it at once after kill', async () => {
  const tag = unique()
  const sbx = await Sandbox.create('base', { ...sdk, metadata: { tag } })
  assert.equal((await all(Sandbox.list({ ...sdk, query: { metadata: { tag } } }))).length, 1)
  await sbx.kill()
  assert.equal((await all(Sandbox.list({ ...sdk, query: { metadata: { tag } } }))).length, 0)
})

test("another tenant's sandbox does not exist", async (t) => {
  const tag = unique()
  const sbx = await box(t, { metadata: { tag } })
  await rejects(Sandbox.connect(sbx.sandboxId, otherSdk), 'SandboxNotFoundError')
  await rejects(Sandbox.getInfo(sbx.sandboxId, otherSdk), 'SandboxNotFoundError')
  assert.equal(await Sandbox.kill(sbx.sandboxId, otherSdk), false)
  await rejects(Sandbox.setTimeout(sbx.sandboxId, 1000, otherSdk), 'SandboxNotFoundError')
  assert.equal((await all(Sandbox.list({ ...otherSdk, query: { metadata: { tag } } }))).length, 0)
  assert.equal(await sbx.isRunning(), true)
})

test("a sandbox's access token opens only that sandbox", async (t) => {
  const [a, b] = [await box(t), await box(t)]
  const get = (id, token) =>
    fetch(`${sdk.sandboxUrl}/files?path=/etc/hostname`, { headers: { 'e2b-sandbox-id': id, 'e2b-sandbox-port': '49983', ...(token ? { 'x-access-token': token } : {}) } })
  assert.equal((await get(a.sandboxId, a.envdAccessToken)).status, 200)
  assert.equal((await get(b.sandboxId, a.envdAccessToken)).status, 401)
  assert.equal((await get(a.sandboxId)).status, 401)
})

test('metrics', async (t) => {
  const sbx = await box(t)
  await sbx.commands.run('head -c 50000000 /dev/zero > /tmp/x')
  const m = await until('a sample', async () => (await sbx.getMetrics()).at(-1), { timeoutMs: 15_000, everyMs: 200 })
  assert.ok(m.memTotal > 0 && m.memUsed > 0 && m.memUsed <= m.memTotal, JSON.stringify(m))
  assert.ok(m.diskTotal > 0 && m.diskUsed <= m.diskTotal)
  assert.ok(m.cpuCount >= 1)
  assert.deepEqual(await sbx.getMetrics({ start: new Date(0), end: new Date(1000) }), [])
})

test('what is not there yet says so with 501, never with a false success', async (t) => {
  const sbx = await box(t)
  const client = api()
  t.after(() => client.close())
  for (const [method, path, body] of [
    ['POST', '/v3/templates', { name: 'x' }],
    ['GET', '/volumes'],
  ]) {
    const r = await client.json(method, path, body)
    assert.equal(r.status, 501, `${method} ${path}: ${r.status} ${JSON.stringify(r.json)}`)
    assert.equal(r.json.code, 501)
    assert.ok(r.json.message.length > 20, 'the message names what is missing')
  }
  assert.equal(await sbx.isRunning(), true)
})

test('malformed requests are 400 with a reason', async (t) => {
  const client = api()
  t.after(() => client.close())
  for (const body of ['{', '[]', '"x"', '{"templateID":7}', '{"templateID":"base","timeout":"soon"}', '{"templateID":"base","metadata":{"a":1}}', '{"templateID":"base","timeout":-1}']) {
    const r = await client.request('POST', '/v2/sandboxes', { headers: { 'content-type': 'application/json' }, body })
    assert.equal(r.status, 400, `${body}: ${r.status} ${r.body}`)
    const json = JSON.parse(r.body)
    assert.equal(json.code, 400)
    assert.ok(json.message.length > 5)
  }
})

test('100 creates at once: all work, all end', { timeout: 180_000 }, async () => {
  const tag = unique()
  const made = await Promise.all(
    Array.from({ length: 100 }, (_, i) => Sandbox.create('base', { ...sdk, timeoutMs: 600_000, requestTimeoutMs: 170_000, metadata: { tag, i: String(i) } }))
  )
  assert.equal(new Set(made.map((s) => s.sandboxId)).size, 100)
  const outs = await Promise.all(made.map((s) => s.commands.run('hostname', { timeoutMs: 0, requestTimeoutMs: 120_000 })))
  outs.forEach((r, i) => assert.equal(r.stdout.trim(), made[i].sandboxId))
  const killed = await Promise.all(made.map((s) => s.kill({ requestTimeoutMs: 120_000 })))
  assert.ok(killed.every(Boolean))
  assert.equal((await all(Sandbox.list({ ...sdk, query: { metadata: { tag } } }))).length, 0)
})

test('kill during create: the create fails or its sandbox is killed, nothing stays', async () => {
  const tag = unique()
  const creating = Sandbox.create('base', { ...sdk, metadata: { tag } }).catch((e) => e)
  for (let i = 0; i < 20; i++) {
    const found = await all(Sandbox.list({ ...sdk, query: { metadata: { tag } } }))
    if (found.length > 0) {
      await Sandbox.kill(found[0].sandboxId, sdk)
      break
    }
    await sleep(2)
  }
  const result = await creating
  if (!(result instanceof Error)) await result.kill()
  assert.equal((await all(Sandbox.list({ ...sdk, query: { metadata: { tag } } }))).length, 0)
})

test('templates: list has base', async (t) => {
  const client = api()
  t.after(() => client.close())
  const list = await client.call('GET', '/templates')
  const base = list.find((x) => [...(x.names ?? []), ...(x.aliases ?? [])].includes('base'))
  assert.ok(base, JSON.stringify(list))
  for (const k of ['templateID', 'buildID', 'cpuCount', 'memoryMB', 'diskSizeMB', 'public', 'createdAt', 'updatedAt', 'spawnCount', 'buildStatus'])
    assert.ok(k in base, `templates have no ${k}`)
  assert.equal(base.buildStatus, 'ready')
  assert.equal((await client.json('DELETE', '/templates/no-such-template')).status, 404)
})
