// Daemon, supervisor and CRIU are killed at each named point of pause, resume, snapshot, fork, rollback and delete.
// Afterwards the old state or the new one; what was saved before is intact; nothing is left.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync, readdirSync, rmSync } from 'node:fs'
import path from 'node:path'
import { afterEach, test } from 'node:test'
import { Sandbox } from 'e2b'
import { Daemon, ROOT } from './lib/daemon.mjs'
import { cellOf, cells, nothingLeft, pids } from './lib/host.mjs'
import { sleep, until } from './lib/http.mjs'


const data = process.env.HF_E2E_DATA
// Points inside the worker that writes the format: tests/unit/engine/disk walks them.
// Passed only when a resume or a rollback fails: tests/unit/control/test_snapshot.c.
const elsewhere = ['resume.undone', 'rollback.put-back']
const points = [
  ...new Set(
    execFileSync('grep', ['-rhoE', 'hf_killpoint\\("[^"]+"\\)', `${ROOT}/src/control`, `${ROOT}/src/engine/shim`, `${ROOT}/src/engine/cell`], { encoding: 'utf8' })
      .split('\n')
      .map((l) => l.match(/"(.+)"/)?.[1])
      .filter((n) => n && !elsewhere.includes(n) && /^(pause|resume|snapshot|fork|rollback)\.|^shim\.(save|restore)-|^cell\.saved/.test(n))
  ),
].sort()

const daemons = new Set()
function newDaemon(options = {}) {
  const d = new Daemon({ data, ...options })
  daemons.add(d)
  return d
}
afterEach(async () => {
  for (const d of daemons) if (d.running) await d.kill9()
  daemons.clear()
})

const COUNTER = 'n=0; while :; do n=$((n+1)); echo $n > /tmp/n.new; mv /tmp/n.new /tmp/n; sleep 0.01; done'
const count = async (sbx) => Number((await sbx.commands.run('cat /tmp/n 2>/dev/null || echo 0')).stdout)
async function goesOn(sbx, from, what) {
  const n = await count(sbx)
  assert.ok(n >= from, `${what}: ${from} and then ${n}`)
  await until(`${what}: the counter counts`, async () => (await count(sbx)) > n, { timeoutMs: 5_000 })
}

const quick = { timeoutMs: 20_000 }
// Passes every point once, as far as the daemon lives. Returns what must hold whatever happens.
async function scenario(daemon) {
  const sdk = await daemon.sdk()
  const api = await daemon.client()
  const facts = { counted: 0 }
  const post = async (p, body) => {
    const r = await api.json('POST', p, body, quick)
    return r.status < 300 ? (r.json ?? {}) : {}
  }
  const sbx = await Sandbox.create('base', { ...sdk, timeoutMs: 600_000 })
  facts.id = sbx.sandboxId
  ;(await sbx.commands.run(COUNTER, { background: true, timeoutMs: 0 })).wait().catch(() => {})
  await until('it counts', async () => (facts.counted = await count(sbx)) > 0)
  const at = `/sandboxes/${facts.id}`
  facts.old = (await post('/v1/snapshots', { sandbox_id: facts.id, kind: 'disk', name: 'old' }).catch(() => ({}))).snapshot?.id
  const steps = [
    async () => post(`${at}/pause`, {}),
    async () => post(`/v2${at}/connect`, { timeout: 600 }),
    async () => post(`${at}/pause`, { depth: 'cold' }),
    async () => post(`/v2${at}/connect`, { timeout: 600 }),
    async () => (facts.full = (await post('/v1/snapshots', { sandbox_id: facts.id, kind: 'full', name: 'full' })).snapshot?.id),
    async () => post('/v1/snapshots', { sandbox_id: facts.id, kind: 'full', if_changed: true }),
    async () => facts.full && post('/v2/sandboxes', { templateID: 'full', timeout: 600 }),
    () => post(`${at}/snapshots`, { name: 'e2b' }),
    async () => {
      const idle = (await post('/v2/sandboxes', { templateID: 'base', timeout: 600 })).sandboxID
      for (let i = 0; idle && i < 2; i++) await post('/v1/snapshots', { sandbox_id: idle, kind: 'disk', if_changed: true })
    },
    async () => {
      const file = path.join(daemon.data, 'exported')
      rmSync(file, { force: true })
      await daemon.cli(['snapshot', 'export', 'old', file], { timeoutMs: 20_000 })
      await daemon.cli(['snapshot', 'import', file], { timeoutMs: 20_000 }).finally(() => rmSync(file, { force: true }))
    },
    async () => post(`${at}/fork`, { count: 2, timeout: 600 }),
    async () => facts.full && post(`/v1${at}/rollback`, { snapshot: 'full' }),
    async () => facts.full && api.json('DELETE', `/v1/snapshots/${facts.full}`, undefined, quick),
    async () => post(`${at}/pause`, { memory: false }),
    async () => api.json('DELETE', at, undefined, quick),
  ]
  for (const step of steps) {
    if (!daemon.running) break
    await step().catch(() => {})
  }
  api.close()
  for (let i = 0; i < 20 && daemon.running; i++) await sleep(10)
  return facts
}

async function oldOrNew(daemon, facts) {
  const sdk = await daemon.sdk()
  const api = await daemon.client()
  const row = await until('it is settled', async () => {
    const r = (await api.json('GET', `/v1/sandboxes/${facts.id}`)).json
    return ['running', 'paused', 'killed', 'failed'].includes(r.state) && r
  }, { timeoutMs: 20_000 })
  if (row.state === 'running' || row.state === 'paused') {
    const sbx = await Sandbox.connect(facts.id, { ...sdk, timeoutMs: 600_000 })
    const alive = (await sbx.commands.run('pgrep -f tmp/n.new >/dev/null && echo yes || echo no')).stdout.trim()
    if (alive === 'yes') await goesOn(sbx, facts.counted, `after ${row.state} ${row.pause}`)
  }
  // What was saved is whole: the first snapshot always, others if they are listed.
  const { snapshots } = await api.call('GET', '/v1/snapshots')
  if (facts.old) assert.ok(snapshots.some((s) => s.id === facts.old), 'the first snapshot is lost')
  for (const s of snapshots) {
    const v = await api.json('POST', `/v1/snapshots/${s.id}/verify`, {}, quick)
    assert.ok(v.status === 200 && v.json.ok, `${s.id}: ${JSON.stringify(v.json)}`)
    const made = await api.json('POST', '/v2/sandboxes', { templateID: s.id, timeout: 600 }, quick)
    assert.equal(made.status, 201, `create from ${s.kind}: ${JSON.stringify(made.json)}`)
    const sbx = await Sandbox.connect(made.json.sandboxID, sdk)
    assert.equal((await sbx.commands.run('echo works')).stdout, 'works\n')
  }
  for (const s of await api.call('GET', '/v2/sandboxes?limit=100')) assert.equal((await api.json('DELETE', `/sandboxes/${s.sandboxID}`, undefined, quick)).status, 204)
  for (const s of snapshots) assert.equal((await api.json('DELETE', `/v1/snapshots/${s.id}`, undefined, quick)).status, 204)
  const dir = path.join(daemon.data, 'pool/snapshots')
  await until('no snapshot is on the disk', () => !existsSync(dir) || readdirSync(dir).length === 0, { timeoutMs: 10_000 }).catch((e) => {
    throw new Error(`${e.message}: ${readdirSync(dir).join(' ')}`)
  })
  api.close()
  const seen = cells(daemon)
  await daemon.finish()
  for (const c of seen) await nothingLeft(c)
}

async function killedAt(point, warm) {
  const daemon = newDaemon({ env: { HOLDFAST_WARM_POOL: String(warm) } })
  await daemon.start()
  await daemon.key()
  await daemon.finish()
  await daemon.start({ env: { HOLDFAST_KILLPOINT: point } })
  const facts = await scenario(daemon)
  const dead = !daemon.running
  if (daemon.running) await daemon.kill9()
  await daemon.start()
  await oldOrNew(daemon, facts)
  return dead
}

test('at least 30 points are named', () => assert.ok(points.length >= 30, points.join(' ')))

for (const point of points)
  test(`SIGKILL at ${point}`, { timeout: 120_000 }, async (t) => {
    const dead = await killedAt(point, 0)
    if (!dead && !point.startsWith('shim.')) t.skip('the scenario does not reach this point')
  })

// CRIU itself, as soon as it is seen.
for (const [what, act] of [
  ['a pause', (api, id) => api.json('POST', `/sandboxes/${id}/pause`, { depth: 'cold' }, quick)],
  ['a resume', async (api, id) => (await api.json('POST', `/sandboxes/${id}/pause`, { depth: 'cold' }, quick), (globalThis.hunting = true), api.json('POST', `/v2/sandboxes/${id}/connect`, { timeout: 600 }, quick))],
])
  test(`CRIU is killed during ${what}`, { timeout: 60_000 }, async () => {
    const daemon = await newDaemon({ env: { HOLDFAST_WARM_POOL: '0' } }).start()
    const sdk = await daemon.sdk()
    const api = await daemon.client()
    const sbx = await Sandbox.create('base', { ...sdk, timeoutMs: 600_000 })
    ;(await sbx.commands.run(COUNTER, { background: true, timeoutMs: 0 })).wait().catch(() => {})
    let n
    await until('it counts', async () => (n = await count(sbx)) > 0)
    globalThis.hunting = what === 'a pause'
    let killed = 0
    const hunt = setInterval(() => {
      if (!globalThis.hunting || killed) return
      for (const pid of pids())
        try {
          if (readFileSync(`/proc/${pid}/comm`, 'utf8') === 'criu\n') process.kill(pid, 'SIGKILL'), killed++
        } catch {}
    }, 1)
    await act(api, sbx.sandboxId)
    clearInterval(hunt)
    const again = await Sandbox.connect(sbx.sandboxId, { ...sdk, timeoutMs: 600_000 })
    await goesOn(again, n, 'after CRIU was killed')
    await oldOrNew(daemon, { id: sbx.sandboxId, counted: n })
  })

test('SIGPWR: what runs is saved, the daemon ends by itself, and all of it goes on at the next start', { timeout: 60_000 }, async () => {
  const daemon = await newDaemon({ env: { HOLDFAST_WARM_POOL: '0' } }).start()
  const sdk = await daemon.sdk()
  const made = await Promise.all(Array.from({ length: 6 }, () => Sandbox.create('base', { ...sdk, timeoutMs: 600_000 })))
  const from = []
  for (const [i, s] of made.entries()) {
    ;(await s.commands.run(COUNTER, { background: true, timeoutMs: 0 })).wait().catch(() => {})
    await until('it counts', async () => (from[i] = await count(s)) > 0)
  }
  await made[5].pause()
  daemon.child.kill('SIGPWR')
  assert.deepEqual(await daemon.exit, { code: 0, signal: null })
  for (const pid of pids()) assert.ok(!readFileSync(`/proc/${pid}/cmdline`, 'utf8').startsWith(`holdfast-shim\0${daemon.runDir}/`), 'a supervisor is left')
  await daemon.start()
  const api = await daemon.client()
  for (const [i, s] of made.entries()) {
    assert.equal((await api.json('GET', `/sandboxes/${s.sandboxId}`)).json.state, 'paused')
    await goesOn(await Sandbox.connect(s.sandboxId, { ...sdk, timeoutMs: 600_000 }), from[i], 'after the host went down')
  }
  assert.equal((await api.json('GET', `/v1/sandboxes/${made[0].sandboxId}`)).json.generation, 2)
  await oldOrNew(daemon, { id: made[0].sandboxId, counted: from[0] })
})

test('the host reboots: cold pauses are there and go on, warm ones say why they do not', { timeout: 60_000 }, async () => {
  const daemon = await newDaemon({ env: { HOLDFAST_WARM_POOL: '0' } }).start()
  const sdk = await daemon.sdk()
  const api = await daemon.client()
  const made = await Promise.all(Array.from({ length: 4 }, () => Sandbox.create('base', { ...sdk, timeoutMs: 600_000, metadata: { kept: 'yes' } })))
  const from = []
  for (const [i, s] of made.entries()) {
    ;(await s.commands.run(COUNTER, { background: true, timeoutMs: 0 })).wait().catch(() => {})
    await until('it counts', async () => (from[i] = await count(s)) > 0)
    await api.json('POST', `/sandboxes/${s.sandboxId}/pause`, { depth: i < 3 ? 'cold' : 'warm' }, quick)
  }
  const warm = cellOf(daemon, made[3].sandboxId)
  await daemon.kill9()
  for (const shim of warm.shims) process.kill(shim.pid, 'SIGKILL')
  for (const pid of pids()) if (readFileSync(`/proc/${pid}/cmdline`, 'utf8').startsWith(`holdfast-netd\0--id\0${path.basename(daemon.runDir)}`)) process.kill(pid, 'SIGKILL')
  await sleep(300)
  const mounts = readFileSync('/proc/self/mounts', 'utf8').split('\n').map((l) => l.split(' ')[1] ?? '')
  for (const m of mounts.filter((x) => x.startsWith(`${daemon.runDir}/`) || x.startsWith(`${daemon.data}/`)).reverse()) execFileSync('umount', ['-l', m])
  rmSync(daemon.runDir, { recursive: true, force: true })
  await daemon.start()
  for (const [i, s] of made.slice(0, 3).entries()) {
    assert.equal((await api.json('GET', `/sandboxes/${s.sandboxId}`)).json.state, 'paused')
    const again = await Sandbox.connect(s.sandboxId, { ...sdk, timeoutMs: 600_000 })
    await goesOn(again, from[i], 'after the reboot')
    assert.deepEqual((await again.getInfo()).metadata, { kept: 'yes' })
  }
  const gone = (await api.json('GET', `/v1/sandboxes/${made[3].sandboxId}`)).json
  assert.equal(gone.state, 'killed')
  assert.ok(gone.cause.length > 0)
  await oldOrNew(daemon, { id: made[0].sandboxId, counted: from[0] })
})
