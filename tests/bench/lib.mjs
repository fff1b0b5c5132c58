// Shared by the benches: statistics, interleaved rounds, the machine, tables.
import { execFileSync, spawn } from 'node:child_process'
import { cpus, release, totalmem } from 'node:os'
import { readFileSync } from 'node:fs'

const round = (x, digits = 2) => Number(x.toFixed(digits))

// Times in ms → {n, p25, p50, p75, min, max}
export function stats(samples) {
  const s = [...samples].sort((a, b) => a - b)
  const at = (q) => {
    const i = (s.length - 1) * q
    const lo = Math.floor(i)
    return s[lo] + (s[Math.min(lo + 1, s.length - 1)] - s[lo]) * (i - lo)
  }
  return { n: s.length, p25: round(at(0.25)), p50: round(at(0.5)), p75: round(at(0.75)), min: round(s[0]), max: round(s.at(-1)) }
}

// Runs each subject once a round, in turn, so that noise hits all alike. subjects: {name: async () => ms}
export async function rounds(n, subjects, { warmup = 3 } = {}) {
  const samples = Object.fromEntries(Object.keys(subjects).map((k) => [k, []]))
  for (let i = -warmup; i < n; i++)
    for (const [name, run] of Object.entries(subjects)) {
      const ms = await run()
      if (i >= 0) samples[name].push(ms)
    }
  return Object.fromEntries(Object.entries(samples).map(([k, v]) => [k, stats(v)]))
}

// A process to its end → ms; throws when it does not end with 0.
export function timeProcess(cmd, args, { cwd, wantCode = 0 } = {}) {
  return new Promise((resolve, reject) => {
    const t0 = performance.now()
    const child = spawn(cmd, args, { stdio: ['ignore', 'ignore', 'pipe'], cwd })
    let stderr = ''
    child.stderr.on('data', (d) => (stderr += d))
    child.on('error', reject)
    child.on('exit', (code, signal) => {
      const ms = performance.now() - t0
      if (code === wantCode) resolve(ms)
      else reject(new Error(`${cmd} ${args.join(' ')}: ended with ${signal ?? code}: ${stderr.slice(0, 500)}`))
    })
  })
}

// At most `width` of the jobs run at a time → {ms, failed}
export async function pool(count, width, job) {
  let next = 0
  let failed = 0
  const t0 = performance.now()
  await Promise.all(
    Array.from({ length: width }, async () => {
      while (next < count) {
        const i = next++
        await job(i).catch(() => failed++)
      }
    })
  )
  return { ms: round(performance.now() - t0, 1), failed }
}

const version = (cmd, args) => {
  try {
    const out = execFileSync(cmd, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
    return out.split('\n')[0]
  } catch {
    return 'unknown'
  }
}

export function machine() {
  const debian = readFileSync('/etc/debian_version', 'utf8').trim()
  return {
    cpu: cpus()[0]?.model ?? 'unknown',
    cores: cpus().length,
    memory_gib: round(totalmem() / 2 ** 30, 1),
    kernel: release(),
    debian,
    node: process.version,
    peers: {
      crun: version('crun', ['--version']),
      runc: version('runc', ['--version']),
      bwrap: version('bwrap', ['--version']),
      nginx: execFileSync('sh', ['-c', 'nginx -v 2>&1'], { encoding: 'utf8' }).trim(),
    },
  }
}

export function table(rows) {
  if (rows.length === 0) return ''
  const heads = Object.keys(rows[0])
  const cell = (v) => (v === undefined ? '' : String(v))
  const width = heads.map((h) => Math.max(h.length, ...rows.map((r) => cell(r[h]).length)))
  const line = (values) => values.map((v, i) => (i === 0 ? v.padEnd(width[i]) : v.padStart(width[i]))).join('  ').trimEnd()
  return [line(heads), line(width.map((w) => '-'.repeat(w))), ...rows.map((r) => line(heads.map((h) => cell(r[h]))))].join('\n')
}

// One goal: what was measured, against what was asked for.
export const goal = (text, value, limit, atMost = true) => ({
  goal: text,
  measured: round(value, 3),
  limit,
  met: atMost ? value <= limit : value >= limit,
})

export { round }
