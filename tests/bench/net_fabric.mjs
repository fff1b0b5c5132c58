// What the network of a sandbox costs: throughput through the fabric beside a bare veth pair, and a create with it
// beside one without. Runs inside the tests' small internet (network.mjs), so the host's own network stays as it is.
import { execFileSync, spawn } from 'node:child_process'
import path from 'node:path'
import { Daemon } from '../e2e/lib/daemon.mjs'
import { sleep } from '../e2e/lib/http.mjs'
import { cellOf } from '../e2e/lib/host.mjs'
import { goal, rounds, stats } from './lib.mjs'
import * as box from './sandbox.mjs'

const PORT = 5201
const SECONDS = 2
const run = (...args) => execFileSync(args[0], args.slice(1), { stdio: ['ignore', 'pipe', 'pipe'] }).toString()

// Two namespaces and a wire: what there is at best.
class BarePair {
  constructor() {
    this.names = [`hf-bench-${process.pid}-a`, `hf-bench-${process.pid}-b`]
    for (const ns of this.names) run('ip', 'netns', 'add', ns)
    const [a, b] = this.names
    run('ip', '-n', a, 'link', 'add', 'v0', 'type', 'veth', 'peer', 'name', 'v0', 'netns', b)
    this.names.forEach((ns, i) => {
      run('ip', '-n', ns, 'addr', 'add', `203.0.113.${i + 1}/24`, 'dev', 'v0')
      run('ip', '-n', ns, 'link', 'set', 'v0', 'up')
    })
  }

  remove() {
    for (const ns of this.names) run('ip', 'netns', 'del', ns)
  }
}

const server = (ns) => {
  const child = spawn('nsenter', [`--net=${ns}`, 'iperf3', '-s', '-p', String(PORT)], { stdio: 'ignore' })
  process.on('exit', () => child.kill('SIGKILL'))
  return child
}

// Gbit/s that arrived at the server.
function client(ns, address) {
  const out = JSON.parse(run('nsenter', `--net=${ns}`, 'iperf3', '-c', address, '-p', String(PORT), '-t', String(SECONDS), '-O', '1', '-J'))
  return out.end.sum_received.bits_per_second / 1e9
}

const ENTRIES = Array.from({ length: 1000 }, (_, i) => `203.0.${i >> 8}.${i & 255}/32`)

async function fabric({ rounds: n, data: dir, base }) {
  const daemon = new Daemon({ data: path.join(dir, 'net'), env: { HOLDFAST_WARM_POOL: '2' } })
  await daemon.start()
  const pair = new BarePair()
  const servers = []
  try {
    await daemon.ensureBase(base)
    const api = await daemon.client()
    const make = async (network) => {
      const r = await api.json('POST', '/v2/sandboxes', { templateID: 'base', timeout: 3600, network })
      if (r.status !== 201) throw new Error(`create: ${r.status} ${JSON.stringify(r.json)}`)
      return `/proc/${cellOf(daemon, r.json.sandboxID).processes[0].pid}/ns/net`
    }
    const open = await make({})
    const listed = await make({ denyOut: ENTRIES.slice(0, 500), allowOut: ENTRIES.slice(500) })
    servers.push(server(`/run/netns/${pair.names[1]}`), server(`/run/netns/${process.env.HF_NET_TAG}-net`))
    await sleep(500)
    const subjects = {
      'bare veth pair': () => client(`/run/netns/${pair.names[0]}`, '203.0.113.2'),
      'sandbox, internet on': () => client(open, '198.51.100.10'),
      'sandbox, 1,000 entries': () => client(listed, '198.51.100.10'),
    }
    const results = await rounds(n, subjects, { warmup: 1 })
    api.close()
    const bare = results['bare veth pair'].p50
    return {
      rows: Object.entries(results).map(([what, s]) => ({ what, ...s, unit: 'Gbit/s' })),
      goals: [
        goal('throughput of a sandbox / bare veth pair (at least)', results['sandbox, internet on'].p50 / bare, 0.9, false),
        goal('the same with 1,000 entries (at least)', results['sandbox, 1,000 entries'].p50 / bare, 0.85, false),
      ],
      notes: [`iperf3, one TCP stream, ${SECONDS} s a round after 1 s of warming up; the sandbox's way is box - fabric - host - other namespace`],
    }
  } finally {
    servers.forEach((s) => s.kill('SIGKILL'))
    pair.remove()
    await daemon.finish()
  }
}

// A create from the pool, by a daemon with the network on and by one with it off; both run the same requests in turn.
async function createNet({ rounds: n, data: dir, base }) {
  const start = async (name, network) => {
    const daemon = new Daemon({ data: path.join(dir, name), env: { HOLDFAST_WARM_POOL: '8', HOLDFAST_NETWORK: network } })
    await daemon.start()
    await daemon.ensureBase(base)
    return { daemon, api: await daemon.client() }
  }
  const on = await start('net', 'required')
  const off = await start('net-off', 'off')
  try {
    await sleep(2000)
    const times = { on: [], off: [], lists: [] }
    const one = async (who, key, network) => {
      const t0 = performance.now()
      const r = await who.api.json('POST', '/v2/sandboxes', { templateID: 'base', timeout: 3600, ...(network && { network }) })
      times[key].push(performance.now() - t0)
      if (r.status !== 201) throw new Error(`create: ${r.status} ${JSON.stringify(r.json)}`)
      await box.kill(who.api, r.json)
      await sleep(60) // the pool fills again
    }
    for (let i = -3; i < 5 * n; i++) {
      await one(off, 'off')
      await one(on, 'on')
      await one(on, 'lists', { denyOut: ['0.0.0.0/0'], allowOut: ['198.51.100.0/24', 'allowed.example'] })
      if (i < 0) for (const k of Object.keys(times)) times[k] = []
    }
    const s = Object.fromEntries(Object.entries(times).map(([k, v]) => [k, stats(v)]))
    return {
      rows: [
        { what: 'create, network off', ...s.off, unit: 'ms' },
        { what: 'create, internet on', ...s.on, unit: 'ms' },
        { what: 'create, lists and names', ...s.lists, unit: 'ms' },
      ],
      goals: [goal('create with network minus create without, ms', s.on.p50 - s.off.p50, 1)],
      notes: ['from the pool, one at a time'],
    }
  } finally {
    for (const d of [on, off]) {
      d.api.close()
      await d.daemon.finish()
    }
  }
}

export const figures = { fabric, create: createNet }
