// ./dev bench: measures the figures beside their peers in the same run. Options: --data DIR --base TAR --upstream EXE
// [--json] [--rounds N] [NAME...]
import path from 'node:path'
import { writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { Daemon } from '../e2e/lib/daemon.mjs'
import { sleep } from '../e2e/lib/http.mjs'
import * as figures from './figures.mjs'
import * as servers from './servers.mjs'
import { machine, table } from './lib.mjs'
import { Peers } from './peers.mjs'

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    data: { type: 'string' },
    base: { type: 'string' },
    upstream: { type: 'string' },
    json: { type: 'boolean', default: false },
    rounds: { type: 'string', default: '50' },
  },
})
const BENCHES = { create: figures.create, batch: figures.batch, exec: figures.exec, kill: figures.kill, memory: figures.memory, proxy: servers.proxy, files: servers.files }
const names = positionals.length > 0 ? positionals : Object.keys(BENCHES)
for (const n of names)
  if (!BENCHES[n]) {
    console.error(`bench: no figure '${n}' (there are: ${Object.keys(BENCHES).join(', ')})`)
    process.exit(2)
  }

async function start(name, warmPool) {
  const daemon = new Daemon({ data: path.join(options.data, name), env: { HOLDFAST_WARM_POOL: String(warmPool) } })
  await daemon.start()
  await daemon.ensureBase(options.base)
  return { daemon, api: await daemon.client() }
}

const out = (s) => process.stderr.write(`${s}\n`)
const report = { machine: machine(), at: new Date().toISOString(), figures: {} }
out(`machine: ${JSON.stringify(report.machine, null, 1)}`)
const warm = await start('warm', 16)
const cold = await start('cold', 0)
const peers = new Peers(options.data, options.base)
await sleep(2000)
let ok = true
try {
  for (const name of names) {
    out(`\n== ${name}`)
    const t0 = performance.now()
    try {
      const r = await BENCHES[name]({ n: Number(options.rounds), warm, cold, peers, dir: options.data, upstream: options.upstream })
      report.figures[name] = r
      out(table(r.rows))
      for (const g of r.goals) out(`goal: ${g.goal}: ${g.measured} (limit ${g.limit}) ${g.met ? 'met' : 'MISSED'}`)
      for (const n of r.notes) out(`note: ${n}`)
    } catch (e) {
      ok = false
      report.figures[name] = { error: e.message }
      out(`FAILED: ${e.stack}`)
    }
    out(`(${((performance.now() - t0) / 1000).toFixed(0)} s)`)
  }
} finally {
  for (const d of [warm, cold]) {
    d.api.close()
    await d.daemon.finish().catch((e) => {
      ok = false
      out(e.stack)
      d.daemon.child.kill('SIGKILL')
    })
  }
}
writeFileSync(path.join(options.data, 'last.json'), `${JSON.stringify(report, null, 2)}\n`)
const goals = Object.values(report.figures).flatMap((f) => f.goals ?? [])
out(`\n${table(goals.map((g) => ({ goal: g.goal, measured: g.measured, limit: g.limit, met: g.met ? 'yes' : 'NO' })))}`)
if (options.json) process.stdout.write(`${JSON.stringify(report, null, 2)}\n`)
process.exit(ok ? 0 : 1)
