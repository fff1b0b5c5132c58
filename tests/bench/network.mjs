// ./dev bench network: the figures of the network, each beside its peer in the same run. Options: --data DIR --base TAR
// --tools DIR [--json] [--rounds N] [NAME...]. A part is a module here that exports `figures`, a map from a name to
// async ({ data, base, tools, rounds }) => { rows, goals, notes }; a part that is not built in yet is not listed.
import path from 'node:path'
import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { againInside } from '../e2e/lib/internet.mjs'
import { machine, table } from './lib.mjs'

// In a namespace that plays the host: what the daemon does to the host's network is not done to this one.
if (!process.env.HF_NET_DIR) process.exit(await againInside())

const PARTS = ['net_ingress.mjs', 'net_fabric.mjs', 'net_l7.mjs']

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    data: { type: 'string' },
    base: { type: 'string' },
    tools: { type: 'string' },
    json: { type: 'boolean', default: false },
    rounds: { type: 'string', default: '10' },
  },
})

const figures = {}
for (const part of PARTS) {
  const file = path.join(import.meta.dirname, part)
  if (existsSync(file)) Object.assign(figures, (await import(file)).figures)
}
const names = positionals.length > 0 ? positionals : Object.keys(figures)
for (const n of names)
  if (!figures[n]) {
    console.error(`bench network: no figure '${n}' (there are: ${Object.keys(figures).join(', ')})`)
    process.exit(2)
  }

const out = (s) => process.stderr.write(`${s}\n`)
const report = { machine: machine(), at: new Date().toISOString(), figures: {} }
out(`machine: ${JSON.stringify(report.machine, null, 1)}`)
mkdirSync(options.data, { recursive: true })
let ok = true
for (const name of names) {
  out(`\n== ${name}`)
  const t0 = performance.now()
  try {
    const r = await figures[name]({ data: options.data, base: options.base, tools: options.tools, rounds: Number(options.rounds) })
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
writeFileSync(path.join(options.data, 'network.json'), `${JSON.stringify(report, null, 2)}\n`)
const goals = Object.values(report.figures).flatMap((f) => f.goals ?? [])
out(`\n${table(goals.map((g) => ({ goal: g.goal, measured: g.measured, limit: g.limit, met: g.met ? 'yes' : 'NO' })))}`)
if (options.json) process.stdout.write(`${JSON.stringify(report, null, 2)}\n`)
process.exit(ok ? 0 : 1)
