// ./dev bench persistence: pause, resume, snapshots, forks and rollbacks of a python process with 64 MiB of data, beside
// plain CRIU and `runc checkpoint` on the same program in the same run. Options: --data DIR --base TAR
// [--json] [--rounds N] [NAME...].
import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { Sandbox } from 'e2b'
import { Daemon } from '../e2e/lib/daemon.mjs'
import { sleep, until } from '../e2e/lib/http.mjs'
import { goal, machine, stats, table, timeProcess } from './lib.mjs'
import { Peers } from './peers.mjs'

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: { data: { type: 'string' }, base: { type: 'string' }, json: { type: 'boolean', default: false }, rounds: { type: 'string', default: '20' } },
})
const ROUNDS = Number(options.rounds)
const CRIU = '/usr/local/lib/holdfast/criu'
const out = (s) => process.stderr.write(`${s}\n`)

// 64 MiB that are really there, and a counter in a file: it moves every 2 ms.
const program = (file) => `
import os, time
d = bytearray(os.urandom(1 << 20)) * 64
n = 0
while True:
    n += 1
    fd = os.open('${file}', os.O_WRONLY | os.O_CREAT); os.pwrite(fd, b'%020d' % n, 0); os.close(fd)
    time.sleep(0.002)
`
const now = () => performance.now()
const dir = path.join(options.data, 'persist')
rmSync(dir, { recursive: true, force: true })
mkdirSync(dir, { recursive: true })

function counter(file) {
  try {
    return Number(readFileSync(file, 'utf8'))
  } catch {
    return 0
  }
}
async function moves(file) {
  const n = counter(file)
  while (counter(file) <= n) await sleep(0)
}

// ---- plain CRIU: the program as it is, in no namespace ----

async function plainCriu() {
  const file = path.join(dir, 'plain-n')
  const script = path.join(dir, 'plain.py')
  writeFileSync(script, program(file))
  const dump = []
  const frozen = []
  const restore = []
  // A grandchild: nobody here must reap it before its pid is restored.
  execFileSync('setsid', ['-f', 'python3', script], { stdio: 'ignore', cwd: '/' })
  await until('the program counts', () => counter(file) > 0)
  const pid = Number(execFileSync('pgrep', ['-f', script], { encoding: 'utf8' }).split('\n')[0])
  for (let i = -2; i < ROUNDS; i++) {
    const images = path.join(dir, 'plain-images')
    rmSync(images, { recursive: true, force: true })
    mkdirSync(images)
    const t0 = now()
    const text = execFileSync(CRIU, ['dump', '-t', String(pid), '-D', images, '-v0', '--display-stats'], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
    const took = now() - t0
    await until('its pid is free again', () => !existsSync(`/proc/${pid}`))
    const t1 = now()
    execFileSync(CRIU, ['restore', '-d', '-D', images, '-v0'], { stdio: 'ignore' })
    await moves(file)
    const back = now() - t1
    if (i < 0) continue
    dump.push(took)
    restore.push(back)
    frozen.push(Number(text.match(/Frozen time: (\d+) us/)?.[1] ?? NaN) / 1000)
  }
  process.kill(pid, 'SIGKILL')
  return { dump: stats(dump), frozen: stats(frozen), restore: stats(restore) }
}

// ---- runc ----

async function runc() {
  const peers = new Peers(path.join(options.data, 'peers'), options.base)
  const bundle = peers.bundle('runc', 'persist', ['/usr/bin/python3', '-c', program('/hfbench-n')])
  const file = path.join(peers.rootfs, 'hfbench-n')
  const config = path.join(bundle, 'config.json')
  const c = JSON.parse(readFileSync(config, 'utf8'))
  c.root.readonly = false
  writeFileSync(config, JSON.stringify(c))
  const root = ['--root', path.join(dir, 'runc-state'), '--criu', CRIU]
  const checkpoint = []
  const restore = []
  const id = `hfp-${process.pid}`
  rmSync(file, { force: true })
  await timeProcess('runc', [...root, 'run', '-d', '-b', bundle, id])
  try {
    await until('runc: the program counts', () => counter(file) > 0)
    for (let i = -2; i < ROUNDS; i++) {
      const images = path.join(dir, 'runc-images')
      rmSync(images, { recursive: true, force: true })
      mkdirSync(images)
      const took = await timeProcess('runc', [...root, 'checkpoint', '--image-path', images, '--work-path', dir, id])
      await timeProcess('runc', [...root, 'delete', '-f', id]).catch(() => {})
      const t1 = now()
      await timeProcess('runc', [...root, 'restore', '-d', '--image-path', images, '--work-path', dir, '-b', bundle, id])
      await moves(file)
      if (i < 0) continue
      checkpoint.push(took)
      restore.push(now() - t1)
    }
  } finally {
    await timeProcess('runc', [...root, 'delete', '-f', id]).catch(() => {})
  }
  return { checkpoint: stats(checkpoint), restore: stats(restore) }
}

// ---- holdfast ----

let daemon
let api
let sdk
async function call(method, p, body) {
  const r = await api.json(method, p, body, { timeoutMs: 60_000 })
  if (r.status >= 300) throw new Error(`${method} ${p}: ${r.status} ${JSON.stringify(r.json)}`)
  return r.json
}
async function timed(samples, fn) {
  const t0 = now()
  const r = await fn()
  samples?.push(now() - t0)
  return r
}
async function counting(extra = {}) {
  const made = await call('POST', '/v2/sandboxes', { templateID: 'base', timeout: 3600, ...extra })
  const sbx = await Sandbox.connect(made.sandboxID, { ...sdk, timeoutMs: 3_600_000 })
  await sbx.files.write('/tmp/p.py', program('/tmp/n'))
  ;(await sbx.commands.run('exec python3 /tmp/p.py', { background: true, timeoutMs: 0 })).wait().catch(() => {})
  await until('the program counts', async () => Number((await sbx.commands.run('cat /tmp/n 2>/dev/null || echo 0')).stdout) > 0)
  return sbx
}
const kill = (id) => api.json('DELETE', `/sandboxes/${id}`, undefined, { timeoutMs: 60_000 })

async function pauses() {
  const s = { warmPause: [], warmResume: [], coldPause: [], coldResume: [], snapshot: [], felt: [], diskSnapshot: [], diskFelt: [], create: [], fromSnapshot: [], rollback: [] }
  const sbx = await counting()
  const at = `/sandboxes/${sbx.sandboxId}`
  for (let i = -2; i < ROUNDS; i++) {
    const keep = (k) => (i < 0 ? undefined : s[k])
    await timed(keep('warmPause'), () => call('POST', `${at}/pause`, {}))
    await timed(keep('warmResume'), () => call('POST', `/v2${at}/connect`, { timeout: 3600 }))
    await timed(keep('coldPause'), () => call('POST', `${at}/pause`, { depth: 'cold' }))
    await timed(keep('coldResume'), () => call('POST', `/v2${at}/connect`, { timeout: 3600 }))
    const full = await timed(keep('snapshot'), () => call('POST', '/v1/snapshots', { sandbox_id: sbx.sandboxId, kind: 'full' }))
    keep('felt')?.push(full.snapshot.frozen_us / 1000)
    const disk = await timed(keep('diskSnapshot'), () => call('POST', '/v1/snapshots', { sandbox_id: sbx.sandboxId, kind: 'disk' }))
    keep('diskFelt')?.push(disk.snapshot.frozen_us / 1000)
    const made = await timed(keep('fromSnapshot'), () => call('POST', '/v2/sandboxes', { templateID: full.snapshot.id, timeout: 600 }))
    await kill(made.sandboxID)
    const plain = await timed(keep('create'), () => call('POST', '/v2/sandboxes', { templateID: 'base', timeout: 600, diskSizeMB: 1025 }))
    await kill(plain.sandboxID)
    await timed(keep('rollback'), () => call('POST', `/v1${at}/rollback`, { snapshot: full.snapshot.id }))
    for (const x of [full, disk]) await api.json('DELETE', `/v1/snapshots/${x.snapshot.id}`, undefined, { timeoutMs: 60_000 })
  }
  await kill(sbx.sandboxId)
  return Object.fromEntries(Object.entries(s).map(([k, v]) => [k, stats(v)]))
}

async function forks() {
  const result = {}
  const sbx = await counting()
  for (const count of [1, 10, 50]) {
    const samples = []
    for (let i = 0; i < (count === 50 ? 2 : 5); i++) {
      const children = await timed(samples, () => call('POST', `/sandboxes/${sbx.sandboxId}/fork`, { count, timeout: 600 }))
      const failed = children.filter((c) => c.error)
      if (failed.length) throw new Error(JSON.stringify(failed[0]))
      await Promise.all(children.map((c) => kill(c.sandbox.sandboxID)))
    }
    result[`fork of ${count}`] = stats(samples)
  }
  await kill(sbx.sandboxId)
  return result
}

async function fifty() {
  const all = []
  for (let i = 0; i < 50; i++) all.push((await call('POST', '/v2/sandboxes', { templateID: 'base', timeout: 3600, memoryMB: 128 })).sandboxID)
  for (const id of all) await call('POST', `/sandboxes/${id}/pause`, { depth: 'cold' })
  const shims = () => Number(spawnSync('pgrep', ['-cf', `holdfast-shim ${daemon.runDir}`], { encoding: 'utf8' }).stdout)
  const left = shims()
  const t0 = now()
  await Promise.all(all.map((id) => call('POST', `/v2/sandboxes/${id}/connect`, { timeout: 3600 })))
  const took = now() - t0
  await Promise.all(all.map(kill))
  return { left, took }
}

async function written() {
  const used = () => Number(execFileSync('df', ['--output=used', '-B1', path.join(daemon.data, 'pool')], { encoding: 'utf8' }).split('\n')[1])
  const sbx = await counting()
  const result = {}
  const one = async (what, prepare, kind) => {
    await prepare()
    execFileSync('sync', ['-f', path.join(daemon.data, 'pool')])
    const before = used()
    const s = await call('POST', '/v1/snapshots', { sandbox_id: sbx.sandboxId, kind })
    execFileSync('sync', ['-f', path.join(daemon.data, 'pool')])
    result[what] = Math.max(used() - before, 0) / 2 ** 20
    return s
  }
  await one('disk: first', async () => {}, 'disk')
  await one('disk: nothing changed', async () => {}, 'disk')
  await one('disk: one file changed', () => sbx.files.write('/home/user/f', 'x'), 'disk')
  await one('full: 64 MiB in memory', async () => {}, 'full')
  const clean = await counting({ metadata: { idle: 'yes' } })
  await clean.commands.run('pkill python3 || true')
  await call('POST', '/v1/snapshots', { sandbox_id: clean.sandboxId, kind: 'disk' })
  const again = await call('POST', '/v1/snapshots', { sandbox_id: clean.sandboxId, kind: 'disk', if_changed: true })
  result['if_changed, idle'] = again.none === 'clean' || again.snapshot === null ? 0 : NaN
  for (const s of (await call('GET', '/v1/snapshots')).snapshots) await api.json('DELETE', `/v1/snapshots/${s.id}`)
  await kill(sbx.sandboxId)
  await kill(clean.sandboxId)
  return result
}

async function main() {
  const report = { machine: machine(), at: new Date().toISOString(), rows: [], goals: [], notes: [] }
  const row = (what, s, unit = 'ms') => report.rows.push({ what, ...s, unit })
  const want = (n) => positionals.length === 0 || positionals.includes(n)
  let ok = true
  const part = async (name, fn) => {
    if (!want(name)) return null
    const t0 = now()
    try {
      return await fn()
    } catch (e) {
      ok = false
      out(`FAILED ${name}: ${e.stack}`)
      for (const log of ['dump.log', 'restore.log'])
        try {
          out(readFileSync(path.join(dir, log), 'utf8').split('\n').filter((l) => l.includes('Error')).join('\n'))
        } catch {}
      return null
    } finally {
      out(`(${name}: ${((now() - t0) / 1000).toFixed(0)} s)`)
    }
  }
  const criu = await part('criu', plainCriu)
  const peer = await part('runc', runc)
  daemon = await new Daemon({ data: path.join(options.data, 'persist-data'), env: { HOLDFAST_WARM_POOL: '0' } }).start()
  try {
    await daemon.ensureBase(options.base)
    sdk = await daemon.sdk()
    api = await daemon.client()
    const p = await part('pauses', pauses)
    const f = await part('forks', forks)
    const w = await part('written', written)
    const many = await part('fifty', fifty)
    if (criu) {
      row('plain criu dump', criu.dump)
      row('plain criu dump, frozen', criu.frozen)
      row('plain criu restore', criu.restore)
    }
    if (peer) {
      row('runc checkpoint', peer.checkpoint)
      row('runc restore', peer.restore)
    }
    if (p) {
      const names = { warmPause: 'warm pause', warmResume: 'warm resume', coldPause: 'cold pause', coldResume: 'cold resume', snapshot: 'snapshot full, total', felt: 'snapshot full, felt', diskSnapshot: 'snapshot disk, total', diskFelt: 'snapshot disk, felt', create: 'create without pool', fromSnapshot: 'create from snapshot', rollback: 'rollback' }
      for (const [k, v] of Object.entries(names)) row(v, p[k])
      report.goals.push(goal('warm resume', p.warmResume.p50, 2), goal('snapshot disk, total', p.diskSnapshot.p50, 15))
      if (criu) {
        report.goals.push(
          goal('cold pause / criu dump', p.coldPause.p50 / criu.dump.p50, 1.3),
          goal('cold resume / criu restore', p.coldResume.p50 / criu.restore.p50, 1.3),
          goal('snapshot full felt / criu frozen', p.felt.p50 / criu.frozen.p50, 1.2),
          goal('create from snapshot / (2 x create + criu restore)', p.fromSnapshot.p50 / (2 * p.create.p50 + criu.restore.p50), 1)
        )
      }
      if (peer) report.goals.push(goal('cold pause / runc checkpoint', p.coldPause.p50 / peer.checkpoint.p50, 1), goal('cold resume / runc restore', p.coldResume.p50 / peer.restore.p50, 1))
    }
    for (const [k, v] of Object.entries(f ?? {})) row(k, v)
    for (const [k, v] of Object.entries(w ?? {})) row(`written, ${k}`, { n: 1, p50: Number(v.toFixed(2)) }, 'MiB')
    if (many) {
      row('50 cold pauses: supervisors left', { n: 1, p50: many.left }, 'processes')
      row('50 cold pauses: until all run', { n: 1, p50: Math.round(many.took) })
      report.goals.push(goal('50 cold pauses: supervisors left', many.left, 0))
    }
  } finally {
    api?.close()
    await daemon.finish()
  }
  out(`\nmachine: ${JSON.stringify(report.machine)}\n`)
  out(table(report.rows))
  out(`\n${table(report.goals.map((g) => ({ goal: g.goal, measured: g.measured, limit: g.limit, met: g.met ? 'yes' : 'NO' })))}`)
  writeFileSync(path.join(options.data, 'persistence.json'), `${JSON.stringify(report, null, 2)}\n`)
  if (options.json) process.stdout.write(`${JSON.stringify(report, null, 2)}\n`)
  rmSync(dir, { recursive: true, force: true })
  process.exit(ok ? 0 : 1)
}

await main()
