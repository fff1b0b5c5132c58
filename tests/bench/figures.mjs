// The figures about sandboxes: create, batch, exec, kill, memory. Each export measures one and gives
// {rows, goals, notes}.
import { readFileSync } from 'node:fs'
import { cellOf, remains } from '../e2e/lib/host.mjs'
import { sleep } from '../e2e/lib/http.mjs'
import { goal, pool, round, rounds } from './lib.mjs'
import { spawnTrue } from './peers.mjs'
import * as box from './sandbox.mjs'

const REFILL_MS = 400 // the warm pool has filled up again; nothing of ours runs while a peer is measured

const asRows = (result) => Object.entries(result).map(([name, s]) => ({ what: name, ...s, unit: 'ms' }))

async function createToTrue(api) {
  const t0 = performance.now()
  const s = await box.create(api)
  await box.exec(api, s)
  const ms = performance.now() - t0
  await box.kill(api, s)
  await sleep(REFILL_MS)
  return ms
}

export async function create({ n, warm, cold, peers }) {
  const result = await rounds(n, {
    'holdfast, warm pool': () => createToTrue(warm.api),
    'holdfast, no pool': () => createToTrue(cold.api),
    'crun run': () => peers.run('crun'),
    'crun run, no cgroup': () => peers.run('crun', { cgroup: false }),
    'runc run': () => peers.run('runc'),
    bwrap: () => peers.bwrap(),
    'spawn /bin/true': () => spawnTrue(),
  })
  const p = (k) => result[k].p50
  return {
    rows: asRows(result),
    goals: [
      goal('create with the pool / crun run', p('holdfast, warm pool') / p('crun run'), 1.0),
      goal('create with the pool / crun run without cgroup', p('holdfast, warm pool') / p('crun run, no cgroup'), 1.0),
      goal('create with the pool / runc run', p('holdfast, warm pool') / p('runc run'), 0.4),
      goal('create without the pool / runc run', p('holdfast, no pool') / p('runc run'), 1.0),
    ],
    notes: [
      'ours: POST create → POST Start /bin/true → end event; includes a quota-limited disk, cgroup limits, seccomp, user namespace, envd',
      'crun, runc: their default spec with the same memory, cpu and pids limits; no disk, no user namespace, no seccomp filter, no daemon inside; bwrap: namespaces only',
      'a peer’s time includes starting a process from this client (last row)',
    ],
  }
}

export async function batch({ warm, cold, peers }) {
  const ours = async (d) => {
    const made = []
    const r = await pool(100, 10, async () => {
      const s = await box.create(d.api)
      made.push(s)
      await box.exec(d.api, s)
    })
    await pool(made.length, 10, (i) => box.kill(d.api, made[i]))
    await sleep(1000)
    return r
  }
  const result = { 'holdfast, warm pool': [], 'holdfast, no pool': [], 'crun run': [], 'crun run, no cgroup': [], 'runc run': [] }
  for (let i = 0; i < 5; i++) {
    result['holdfast, warm pool'].push(await ours(warm))
    result['crun run'].push(await pool(100, 10, () => peers.run('crun')))
    result['crun run, no cgroup'].push(await pool(100, 10, () => peers.run('crun', { cgroup: false })))
    result['holdfast, no pool'].push(await ours(cold))
    result['runc run'].push(await pool(100, 10, () => peers.run('runc')))
  }
  const rows = Object.entries(result).map(([what, rs]) => {
    const ms = rs.map((r) => r.ms).sort((a, b) => a - b)
    return { what, p50: ms[2], min: ms[0], max: ms[4], failed: rs.reduce((a, r) => a + r.failed, 0), unit: 'ms for 100, 10 at a time' }
  })
  const p = (k) => rows.find((r) => r.what === k)
  return {
    rows,
    goals: [
      goal('100 creates, 10 at a time: failures', p('holdfast, warm pool').failed + p('holdfast, no pool').failed, 0),
      goal('100 creates, 10 at a time / crun', p('holdfast, warm pool').p50 / p('crun run').p50, 1.5),
      goal('100 creates, 10 at a time / crun without cgroup', p('holdfast, warm pool').p50 / p('crun run, no cgroup').p50, 1.5),
    ],
    notes: ['median of 5 batches; ours stay alive until the batch ends, the peers’ containers end with their `true`'],
  }
}

export async function exec({ n, warm, peers }) {
  const s = await box.create(warm.api)
  const ids = { crun: await peers.sleeper('crun'), runc: await peers.sleeper('runc') }
  try {
    const timed = async () => {
      const t0 = performance.now()
      await box.exec(warm.api, s)
      return performance.now() - t0
    }
    const result = await rounds(n, {
      'holdfast exec': timed,
      'crun exec': () => peers.exec('crun', ids.crun),
      'runc exec': () => peers.exec('runc', ids.runc),
      'spawn /bin/true': () => spawnTrue(),
    })
    return { rows: asRows(result), goals: [goal('exec true / crun exec', result['holdfast exec'].p50 / result['crun exec'].p50, 1.0)], notes: [] }
  } finally {
    await box.kill(warm.api, s)
    for (const [runtime, id] of Object.entries(ids)) await peers.remove(runtime, id)
  }
}

export async function kill({ n, warm, peers }) {
  let late = 0
  const ours = async () => {
    const s = await box.create(warm.api)
    await box.exec(warm.api, s)
    await sleep(REFILL_MS)
    const cell = cellOf(warm.daemon, s.sandboxID)
    const t0 = performance.now()
    await box.kill(warm.api, s)
    let ms = performance.now() - t0
    if (remains(cell).length > 0) {
      late++
      while (remains(cell).length > 0) await sleep(1)
      ms = performance.now() - t0
    }
    return ms
  }
  const peer = async (runtime) => peers.remove(runtime, await peers.sleeper(runtime))
  const result = await rounds(n, { 'holdfast kill': ours, 'crun delete -f': () => peer('crun'), 'runc delete -f': () => peer('runc') })
  return {
    rows: asRows(result),
    goals: [goal('kill to nothing left / runc delete -f', result['holdfast kill'].p50 / result['runc delete -f'].p50, 1.0)],
    notes: [`ours ends when no process, cgroup, loop device, netns, mount or file of the sandbox is on the host (checked from /proc and /sys); ${late} kills had something left when the API answered`],
  }
}

const pss = (pid) => Number(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8').match(/^Pss:\s+(\d+)/m)[1])

export async function memory({ warm }) {
  const made = []
  for (let i = 0; i < 10; i++) {
    made.push(await box.create(warm.api))
    await box.exec(warm.api, made.at(-1))
  }
  await sleep(1000)
  const each = made.map((s) => {
    const c = cellOf(warm.daemon, s.sandboxID)
    const envd = c.processes.find((p) => readFileSync(`/proc/${p.pid}/comm`, 'utf8').includes('envd'))
    return { shim: pss(c.shims[0].pid), envd: pss(envd.pid) }
  })
  for (const s of made) await box.kill(warm.api, s)
  const median = (k) => each.map((e) => e[k]).sort((a, b) => a - b)[5]
  const [shim, envd] = [median('shim'), median('envd')]
  return {
    rows: [{ what: 'shim', p50: shim, unit: 'KiB PSS' }, { what: 'envd', p50: envd, unit: 'KiB PSS' }, { what: 'together', p50: shim + envd, unit: 'KiB PSS' }],
    goals: [goal('PSS of shim + envd, MiB', round((shim + envd) / 1024), 3)],
    notes: ['10 idle sandboxes that ran one command; median'],
  }
}
