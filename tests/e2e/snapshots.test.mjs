// Snapshots, forks and rollbacks: the published SDK unmodified, our own routes, and the CLI.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdtempSync, openSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync, writeSync, closeSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { Sandbox } from 'e2b'
import { api, box, daemonFacts, otherSdk, rejects, sdk, url } from './lib/suite.mjs'
import { Daemon, HOLDFAST } from './lib/daemon.mjs'
import { until } from './lib/http.mjs'

const exec = promisify(execFile)
const unique = (() => {
  let n = 0
  return (name) => `${name}-${process.pid}-${n++}`
})()

async function holdfast(...args) {
  return (await exec(HOLDFAST, args, { env: { ...process.env, HOLDFAST_URL: url, HOLDFAST_API_KEY: sdk.apiKey } })).stdout.trim()
}

// One request of our own API; fails with what was answered.
async function ask(method, target, body, status) {
  const client = api()
  try {
    const r = await client.json(method, target, body, { timeoutMs: 60_000 })
    assert.equal(r.status, status, `${method} ${target}: ${r.status} ${JSON.stringify(r.json)}`)
    return r.json
  } finally {
    client.close()
  }
}

const sh = async (sbx, cmd) => (await sbx.commands.run(cmd)).stdout.trim()

// A process that has something to lose: each line that it is given through the fifo is kept in its memory only.
async function remembering(sbx) {
  await sbx.files.write('/home/user/keep.py', `
import os
os.path.exists('/home/user/in') or os.mkfifo('/home/user/in')
kept = []
while True:
    with open('/home/user/in') as f:
        for line in f:
            kept.append(line.strip())
            with open('/home/user/out.tmp', 'w') as o: o.write(' '.join(kept))
            os.rename('/home/user/out.tmp', '/home/user/out')
`)
  const cmd = await sbx.commands.run('python3 /home/user/keep.py', { background: true, timeoutMs: 0 })
  await until('the process listens', () => sh(sbx, 'test -p /home/user/in && echo yes || true').then((s) => s === 'yes'))
  return cmd.pid
}
// Gives it a word; what it has kept so far.
async function remember(sbx, word) {
  await sbx.commands.run(`echo ${word} > /home/user/in`)
  return until(`it kept ${word}`, async () => {
    const kept = await sh(sbx, 'cat /home/user/out 2>/dev/null || true')
    return kept.split(' ').includes(word) && kept
  })
}

async function made(t, template, opts = {}) {
  return box(t, { template, ...opts })
}

test('a snapshot of a running sandbox: it goes on, and others go on from it', async (t) => {
  const sbx = await box(t, { metadata: { owner: 'alice' } })
  const pid = await remembering(sbx)
  await remember(sbx, 'one')
  const name = unique('first')
  const snap = await sbx.createSnapshot({ name })
  assert.deepEqual(snap, { snapshotId: `default/${name}:default`, names: [`default/${name}:default`] })
  t.after(() => Sandbox.deleteSnapshot(snap.snapshotId, sdk))
  assert.equal(await remember(sbx, 'two'), 'one two', 'the original goes on')

  const a = await made(t, snap.snapshotId)
  const b = await made(t, name)
  assert.equal(await remember(a, 'a'), 'one a', 'memory came along')
  assert.equal(await remember(b, 'b'), 'one b')
  assert.ok((await a.commands.list()).some((p) => p.pid === pid), 'the same process')
  assert.equal(await sh(a, 'hostname'), a.sandboxId)
  assert.notEqual(await sh(a, 'cat /etc/machine-id'), await sh(b, 'cat /etc/machine-id'))
  assert.notEqual(a.envdAccessToken ?? 'a', b.envdAccessToken ?? 'b')
  assert.deepEqual((await a.getInfo()).metadata, {}, 'metadata is the request\'s')

  assert.equal(await Sandbox.deleteSnapshot(snap.snapshotId, sdk), true)
  assert.equal(await Sandbox.deleteSnapshot(snap.snapshotId, sdk), false)
  assert.equal(await remember(a, 'later'), 'one a later', 'what was made from it does not need it')
  await rejects(Sandbox.create(snap.snapshotId, sdk), 'SandboxError', /not found/)
})

test('lists: by sandbox, by name, in pages; apart from templates', async (t) => {
  const sbx = await box(t)
  const ids = []
  for (let i = 0; i < 3; i++) ids.push((await sbx.createSnapshot()).snapshotId)
  const name = unique('named')
  await sbx.createSnapshot({ name: `${name}:v1` })
  t.after(async () => {
    for (const id of [...ids, `${name}:v1`]) await Sandbox.deleteSnapshot(id, sdk)
  })
  assert.match(ids[0], /^s[a-z0-9]{20}:default$/)
  const seen = []
  const pages = sbx.listSnapshots({ limit: 3 })
  while (pages.hasNext) {
    const page = await pages.nextItems()
    assert.ok(page.length <= 3)
    seen.push(...page.map((s) => s.snapshotId))
  }
  assert.deepEqual(seen, [`default/${name}:v1`, ...ids.toReversed()], 'newest first, each once')
  const list = (q) => ask('GET', `/snapshots?${q}`, undefined, 200)
  assert.deepEqual(await list(`name=${name}:v1`), [{ snapshotID: `default/${name}:v1`, names: [`default/${name}:v1`] }])
  assert.deepEqual(await list('name=nobody-has-this'), [])
  assert.ok((await ask('GET', '/templates', undefined, 200)).every((tpl) => !ids.some((id) => id.startsWith(tpl.templateID))))
  const others = await Sandbox.listSnapshots({ ...otherSdk }).nextItems()
  assert.ok(others.every((s) => !ids.includes(s.snapshotId)))
  assert.equal(await Sandbox.deleteSnapshot(ids[0], otherSdk), false, 'not theirs')
  assert.ok((await list(`sandboxID=${sbx.sandboxId}`)).some((s) => s.snapshotID === ids[0]))
})

test('kind disk: the files without the processes, and the environment again', async (t) => {
  const sbx = await box(t, { envs: { SECRET: 'of the box' } })
  const pid = await remembering(sbx)
  await sbx.files.write('/home/user/f', 'kept')
  const { snapshot } = await ask('POST', '/v1/snapshots', { sandbox_id: sbx.sandboxId, kind: 'disk' }, 201)
  t.after(() => ask('DELETE', `/v1/snapshots/${snapshot.id}`, undefined, 204))
  assert.equal(snapshot.kind, 'disk')
  assert.ok(snapshot.frozen_us > 0 && snapshot.frozen_us <= snapshot.total_us)
  assert.equal(snapshot.bytes, snapshot.exclusive_bytes + snapshot.shared_bytes)
  const child = await made(t, snapshot.id)
  assert.equal(await child.files.read('/home/user/f'), 'kept')
  assert.ok(!(await child.commands.list()).some((p) => p.pid === pid))
  assert.equal(await sh(child, 'echo $SECRET'), 'of the box')
  for (const f of ['holdfast.db', 'holdfast.db-wal'])
    assert.ok(!readFileSync(path.join(daemonFacts.data, f)).includes('of the box'), 'the environment is nowhere in clear')
})

test('a sandbox in which nothing happened is not snapshotted again', async (t) => {
  const sbx = await box(t)
  await sbx.files.write('/home/user/f', '1')
  const body = { sandbox_id: sbx.sandboxId, kind: 'full', if_changed: true }
  const first = await ask('POST', '/v1/snapshots', body, 201)
  assert.deepEqual(await ask('POST', '/v1/snapshots', body, 200), { snapshot: null, none: 'clean' })
  await sbx.commands.run('head -c 200000 /dev/urandom > /home/user/g && sync && python3 -c "sum(range(2000000))"')
  const second = await ask('POST', '/v1/snapshots', body, 201)
  assert.equal(second.snapshot.parent_id, first.snapshot.id)
  await holdfast('snapshot', 'rm', first.snapshot.id, second.snapshot.id)
})

test('fork: children from one moment, each somebody of its own', async (t) => {
  const sbx = await box(t, { metadata: { owner: 'bob' } })
  await remembering(sbx)
  await remember(sbx, 'before')
  const children = await sbx.fork({ count: 3, timeoutMs: 120_000 })
  t.after(() => Promise.all(children.map((c) => c.kill())))
  assert.equal(children.length, 3)
  for (const c of children) assert.ok(c instanceof Sandbox, String(c))
  assert.equal(new Set([sbx, ...children].map((c) => c.sandboxId)).size, 4)
  for (const [i, c] of children.entries()) {
    assert.equal(await remember(c, `child${i}`), `before child${i}`)
    const info = await c.getInfo()
    assert.deepEqual(info.metadata, { owner: 'bob', 'holdfast.forked-from': sbx.sandboxId })
  }
  assert.equal(await remember(sbx, 'after'), 'before after')
  const randoms = await Promise.all(children.map((c) => sh(c, 'head -c 16 /dev/urandom | od -An -tx1')))
  assert.equal(new Set(randoms).size, 3)
  const left = await ask('GET', `/v1/snapshots?sandbox_id=${sbx.sandboxId}`, undefined, 200)
  assert.deepEqual(left.snapshots, [], 'the fork\'s own snapshot is nobody\'s')
  await rejects(Sandbox.fork('i00000000000000000000', sdk), 'SandboxNotFoundError')
  await rejects(sbx.fork({ count: 101 }), 'SandboxError', /count/)
})

test('rollback: the same sandbox, back at that moment, more than once', async (t) => {
  const sbx = await box(t)
  await remembering(sbx)
  await remember(sbx, 'one')
  await sbx.files.write('/home/user/f', 'then')
  const name = unique('back')
  await sbx.createSnapshot({ name })
  t.after(() => Sandbox.deleteSnapshot(name, sdk))
  for (let generation = 2; generation <= 3; generation++) {
    await sbx.files.write('/home/user/f', 'wrecked')
    assert.equal(await remember(sbx, 'two'), generation === 2 ? 'one two' : 'one three two')
    assert.deepEqual(await ask('POST', `/v1/sandboxes/${sbx.sandboxId}/rollback`, { snapshot: name }, 200), { sandbox_id: sbx.sandboxId, generation })
    assert.equal(await sbx.files.read('/home/user/f'), 'then')
    assert.equal(await sh(sbx, 'cat /run/holdfast/generation'), String(generation))
    assert.equal(await remember(sbx, 'three'), 'one three')
  }
  assert.equal((await Sandbox.list({ ...sdk }).nextItems()).filter((s) => s.sandboxId === sbx.sandboxId).length, 1)
  // Of a paused one: it runs afterwards.
  await sbx.betaPause()
  assert.equal(await holdfast('sandbox', 'rollback', sbx.sandboxId, name), sbx.sandboxId)
  assert.equal(await remember(sbx, 'four'), 'one four')
  const other = await box(t)
  await ask('POST', `/v1/sandboxes/${other.sandboxId}/rollback`, { snapshot: name }, 409)
  await ask('POST', `/v1/sandboxes/${sbx.sandboxId}/rollback`, { snapshot: 'nobody-has-this' }, 404)
})

// The parts of a snapshot on the disk.
const dirOf = (id) => path.join(daemonFacts.data, 'pool/snapshots', id)
function spoil(file) {
  const fd = openSync(file, 'r+')
  writeSync(fd, Buffer.from('spoiled by the test'), 0, 19, Math.max(0, Math.floor(statSync(file).size / 2) - 19))
  closeSync(fd)
}

test('a damaged snapshot is refused with the part\'s name; the sandbox goes on as it was', async (t) => {
  const sbx = await box(t)
  await remembering(sbx)
  await remember(sbx, 'one')
  const { snapshot } = await ask('POST', '/v1/snapshots', { sandbox_id: sbx.sandboxId }, 201)
  t.after(() => ask('DELETE', `/v1/snapshots/${snapshot.id}`, undefined, 204))
  await until('its hashes are taken', async () => (await ask('POST', `/v1/snapshots/${snapshot.id}/verify`, {}, 200)).unsealed === 0)
  const pages = readdirSync(path.join(dirOf(snapshot.id), 'mem')).find((f) => f.startsWith('pages-'))
  spoil(path.join(dirOf(snapshot.id), 'mem', pages))
  const verdict = await ask('POST', `/v1/snapshots/${snapshot.id}/verify`, {}, 200)
  assert.equal(verdict.ok, false)
  assert.ok(verdict.detail.includes(pages), verdict.detail)
  await rejects(Sandbox.create(snapshot.id, sdk), 'SandboxError', new RegExp(pages))
  await ask('POST', `/v1/sandboxes/${sbx.sandboxId}/rollback`, { snapshot: snapshot.id }, 500)
  assert.equal(await remember(sbx, 'two'), 'one two')
  await assert.rejects(holdfast('snapshot', 'verify', snapshot.id))
})

test('export and import: one file, and not for everybody', { timeout: 120_000 }, async (t) => {
  const dir = mkdtempSync(path.join(tmpdir(), 'hf-snap-'))
  t.after(() => rmSync(dir, { recursive: true }))
  const sbx = await box(t, { metadata: { owner: 'carol' } })
  await remembering(sbx)
  await remember(sbx, 'one')
  const name = unique('moved')
  const id = await holdfast('snapshot', 'create', sbx.sandboxId, '--name', `${name}:a`)
  const file = path.join(dir, 'x.hfsnap')
  assert.equal(await holdfast('snapshot', 'export', id, file), file)
  const copy = await holdfast('snapshot', 'import', file, '--name', `${name}:b`)
  assert.notEqual(copy, id)
  t.after(() => holdfast('snapshot', 'rm', id, copy))
  assert.equal(await holdfast('snapshot', 'verify', copy), `${copy}: good`)
  const shown = JSON.parse(await holdfast('snapshot', 'show', `${name}:b`, '--json'))
  assert.deepEqual([shown.kind, shown.metadata, shown.sandbox_id], ['full', { owner: 'carol' }, null])
  const child = await made(t, `${name}:b`)
  assert.equal(await remember(child, 'two'), 'one two')

  const whole = readFileSync(file)
  const broken = { half: whole.subarray(0, whole.length >> 1), empty: Buffer.alloc(0), junk: Buffer.from('this is no snapshot') }
  const turned = Buffer.from(whole)
  turned[whole.length >> 1] ^= 0xff
  broken.turned = turned
  for (const [what, bytes] of Object.entries(broken)) {
    const bad = path.join(dir, what)
    writeFileSync(bad, bytes)
    await assert.rejects(holdfast('snapshot', 'import', bad), `${what} was taken`)
  }
  const before = (await holdfast('snapshot', 'ls', '--quiet')).split('\n')
  assert.ok(before.includes(copy) && readdirSync(path.join(daemonFacts.data, 'pool/snapshots')).every((d) => before.includes(d)), 'nothing of the refused ones is left')
  const client = api(otherSdk.apiKey)
  t.after(() => client.close())
  const r = await client.request('POST', '/v1/snapshots/import', { body: whole })
  assert.equal(r.status, 403)
})

test('a snapshot moves to another machine, with the template that it stands on', { timeout: 120_000 }, async (t) => {
  const dir = mkdtempSync(path.join(tmpdir(), 'hf-move-'))
  const sbx = await box(t)
  await remembering(sbx)
  await remember(sbx, 'one')
  const id = await holdfast('snapshot', 'create', sbx.sandboxId)
  const bare = await holdfast('snapshot', 'export', id, path.join(dir, 'bare.hfsnap'))
  const whole = await holdfast('snapshot', 'export', id, path.join(dir, 'whole.hfsnap'), '--template')
  await holdfast('snapshot', 'rm', id)
  // Another data directory is another machine to holdfast.
  const other = await new Daemon({ data: path.join(dir, 'other'), env: { HOLDFAST_WARM_POOL: '0', HOLDFAST_NETWORK: 'off' } }).start()
  t.after(async () => {
    await other.finish().catch(() => other.kill9())
    rmSync(dir, { recursive: true, force: true })
  })
  const there = { ...(await other.sdk()), timeoutMs: 300_000 }
  const refused = await other.cli(['snapshot', 'import', bare], { ok: false })
  assert.match(refused.stderr, /template/)
  const moved = (await other.cli(['snapshot', 'import', whole])).stdout.trim()
  const child = await Sandbox.create(moved, there)
  assert.equal(await remember(child, 'two'), 'one two')
  assert.equal((await other.cli(['snapshot', 'verify', moved])).stdout.trim(), `${moved}: good`)
  await child.kill()
  const template = (await other.cli(['template', 'ls', '--quiet'])).stdout.trim()
  assert.match((await other.cli(['template', 'rm', template], { ok: false })).stderr, new RegExp(moved))
  await other.cli(['snapshot', 'rm', moved])
  await other.cli(['template', 'rm', template])
})

test('what conflicts says with whom', async (t) => {
  const sbx = await box(t)
  const snap = await sbx.createSnapshot()
  const base = (await ask('GET', '/templates/aliases/base', undefined, 200)).templateID
  const imported = unique('tpl')
  await ask('POST', `/sandboxes/${sbx.sandboxId}/snapshots`, { name: 'base' }, 409)
  await ask('POST', `/sandboxes/${sbx.sandboxId}/snapshots`, { name: 'a b' }, 400)
  await ask('POST', '/v1/snapshots', { sandbox_id: sbx.sandboxId, kind: 'half' }, 400)
  await ask('POST', '/v1/snapshots', {}, 400)
  await sbx.betaPause()
  await ask('POST', `/sandboxes/${sbx.sandboxId}/snapshots`, {}, 409)
  await ask('POST', `/sandboxes/${sbx.sandboxId}/fork`, {}, 409)
  const ofPaused = await ask('POST', '/v1/snapshots', { sandbox_id: sbx.sandboxId, name: imported }, 201)
  assert.equal((await sbx.getInfo()).state, 'paused', 'it stays paused')
  await sbx.kill()
  const refused = await ask('DELETE', `/templates/${base}`, undefined, 409).catch((e) => e)
  if (refused instanceof Error) assert.match(refused.message, /in use by sandbox/, 'other tests may have sandboxes of it')
  else assert.match(refused.message, /snapshot s/)
  const child = await made(t, ofPaused.snapshot.id)
  const pool = path.join(daemonFacts.data, 'pool/snapshots')
  const before = new Set(readdirSync(pool))
  await ask('POST', `/sandboxes/${child.sandboxId}/pause`, { depth: 'cold' }, 204)
  const image = readdirSync(pool).find((d) => !before.has(d))
  assert.match((await ask('DELETE', `/v1/snapshots/${image}`, undefined, 409)).message, new RegExp(child.sandboxId), 'by whom')
  await ask('GET', `/v1/snapshots/${image}`, undefined, 404)
  await child.connect()
  await until('what it was paused in is gone', () => !readdirSync(pool).includes(image))
  assert.equal(await child.isRunning(), true)
  await Sandbox.deleteSnapshot(snap.snapshotId, sdk)
  await Sandbox.deleteSnapshot(ofPaused.snapshot.id, sdk)
})

test('a session\'s workspace: no fork may have it too, a rollback leaves it alone', async (t) => {
  const key = `snap:test:${unique('s')}`
  const opened = await ask('POST', '/v1/sessions', { key }, 201)
  t.after(() => ask('DELETE', `/v1/sessions/${opened.session.id}`, undefined, 204).catch(() => {}))
  const sbx = await Sandbox.connect(opened.sandbox.id, sdk)
  await remembering(sbx)
  await remember(sbx, 'one')
  await sbx.commands.run('echo then > /workspace/f; echo then > /home/user/f')
  const { snapshot } = await ask('POST', '/v1/snapshots', { sandbox_id: sbx.sandboxId }, 201)
  t.after(() => ask('DELETE', `/v1/snapshots/${snapshot.id}`, undefined, 204))
  assert.equal(snapshot.session_id, opened.session.id)
  const refused = await ask('POST', `/sandboxes/${sbx.sandboxId}/fork`, { count: 1 }, 409)
  assert.match(refused.message, /ws-/)
  const [child] = await ask('POST', `/sandboxes/${sbx.sandboxId}/fork`, { count: 1, timeout: 60, volumes: 'none' }, 201)
  assert.ok(child.sandbox, JSON.stringify(child))
  const booted = await Sandbox.connect(child.sandbox.sandboxID, sdk)
  t.after(() => booted.kill())
  assert.equal(await booted.files.read('/home/user/f'), 'then\n')
  assert.ok(!(await booted.commands.list()).some((p) => p.args?.some((a) => a.includes('keep.py'))))
  await sbx.commands.run('echo now > /workspace/f; echo now > /home/user/f')
  await ask('POST', `/v1/sandboxes/${sbx.sandboxId}/rollback`, { snapshot: snapshot.id }, 200)
  assert.equal(await sbx.files.read('/home/user/f'), 'then\n')
  assert.equal(await sbx.files.read('/workspace/f'), 'now\n')
  assert.equal(await remember(sbx, 'two'), 'one two')
})

test('policies: after a step, by time, and only so many stay', { timeout: 60_000 }, async (t) => {
  const sbx = await box(t)
  const at = `/v1/sandboxes/${sbx.sandboxId}/snapshot-policy`
  await ask('GET', at, undefined, 404)
  assert.deepEqual(await ask('POST', `${at}/step`, {}, 200), { snapshot: null, none: 'no policy' })
  await holdfast('snapshot', 'policy', sbx.sandboxId, '--every', '0', '--after-step', '--keep', '2', '--kind', 'disk')
  assert.deepEqual(await ask('GET', at, undefined, 200), { every_s: 0, after_step: true, kind: 'disk', keep_count: 2, keep_age_s: 0, keep_bytes: 0 })
  for (let i = 0; i < 3; i++) {
    await sbx.commands.run(`head -c 200000 /dev/urandom > /home/user/f${i} && sync`)
    await ask('POST', `${at}/step`, {}, 201)
  }
  assert.deepEqual(await ask('POST', `${at}/step`, {}, 200), { snapshot: null, none: 'clean' })
  const list = async () => (await ask('GET', `/v1/snapshots?sandbox_id=${sbx.sandboxId}`, undefined, 200)).snapshots
  await until('the oldest is gone', async () => (await list()).length === 2)
  assert.ok((await list()).every((s) => s.purpose === 'policy'))
  await ask('PUT', at, { every_s: 5 }, 400)
  await ask('PUT', at, { every_s: 10, keep_count: 2, kind: 'disk' }, 200)
  const newest = (await list())[0].id
  await sbx.commands.run('head -c 200000 /dev/urandom > /home/user/g && sync')
  await until('one was taken by time', async () => (await list())[0].id !== newest, { timeoutMs: 30_000 })
  await holdfast('snapshot', 'policy', sbx.sandboxId, '--off')
  await ask('GET', at, undefined, 404)
  for (const s of await list()) await ask('DELETE', `/v1/snapshots/${s.id}`, undefined, 204)
})
