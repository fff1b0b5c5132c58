// Facts about sandboxes from the host's side: /proc, /sys and the daemon's run directory. Needs root.
// Nothing here asks the daemon: these checks must not believe what it says about itself.
import { existsSync, readFileSync, readdirSync, readlinkSync, statSync } from 'node:fs'
import path from 'node:path'
import { until } from './http.mjs'

function read(file) {
  try {
    return readFileSync(file, 'latin1')
  } catch {
    return ''
  }
}

function list(dir) {
  try {
    return readdirSync(dir)
  } catch {
    return []
  }
}

function link(file) {
  try {
    return readlinkSync(file)
  } catch {
    return ''
  }
}

export const pids = () => list('/proc').filter((n) => /^\d+$/.test(n)).map(Number)

// Start time in clock ticks: with the pid it names one process for ever. '' when it is gone or a zombie.
export function startTime(pid) {
  const stat = read(`/proc/${pid}/stat`)
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return stat === '' || fields[0] === 'Z' || fields[0] === 'X' ? '' : fields[19]
}

export const alive = ({ pid, start }) => startTime(pid) === start

function cgroupDirs(tag, n) {
  const roots = ['/sys/fs/cgroup', ...list('/sys/fs/cgroup').map((c) => `/sys/fs/cgroup/${c}`)]
  return roots.map((r) => `${r}/holdfast/${tag}/${n}`).filter((d) => existsSync(d))
}

function loopsOf(test) {
  return list('/sys/block')
    .filter((b) => b.startsWith('loop'))
    .map((b) => ({ name: b, file: read(`/sys/block/${b}/loop/backing_file`).trim() }))
    .filter((l) => l.file !== '' && test(l.file))
}

function filesBelow(dir, depth = 2) {
  return list(dir).flatMap((name) => {
    const file = path.join(dir, name)
    let st
    try {
      st = statSync(file)
    } catch {
      return []
    }
    if (st.isDirectory()) return depth > 0 ? filesBelow(file, depth - 1) : []
    return st.isFile() && st.size < 1 << 20 ? [file] : []
  })
}

// The cell that holds a sandbox: its number, shim, processes, cgroups, loop devices, network namespace.
// undefined when the run directory has none.
export function cellOf(daemon, sandboxId) {
  const n = list(daemon.runDir).find(
    (name) =>
      /^\d+$/.test(name) && filesBelow(path.join(daemon.runDir, name), 0).some((f) => read(f).includes(sandboxId))
  )
  return n === undefined ? undefined : cell(daemon, n)
}

function cell(daemon, n) {
  const tag = path.basename(daemon.runDir)
  const run = path.join(daemon.runDir, n)
  const cgroups = cgroupDirs(tag, n)
  const inside = new Set()
  const walk = (dir) => {
    for (const line of read(`${dir}/cgroup.procs`).split('\n')) if (line) inside.add(Number(line))
    for (const name of list(dir)) if (existsSync(`${dir}/${name}/cgroup.procs`)) walk(`${dir}/${name}`)
  }
  cgroups.forEach(walk)
  const shims = pids().filter((pid) => {
    const args = read(`/proc/${pid}/cmdline`).split('\0')
    return read(`/proc/${pid}/comm`).startsWith('holdfast-shim') && args.some((a) => a === run || a.startsWith(`${run}/`))
  })
  for (const shim of shims) inside.delete(shim)
  const processes = [...inside].map((pid) => ({ pid, start: startTime(pid) })).filter((p) => p.start !== '')
  const own = link('/proc/self/ns/net')
  return {
    n,
    run,
    cgroups,
    shims: shims.map((pid) => ({ pid, start: startTime(pid) })),
    processes,
    netns: [...new Set(processes.map((p) => link(`/proc/${p.pid}/ns/net`)))].filter((x) => x !== '' && x !== own),
    image: path.join(daemon.data, `pool/cells/${n}.img`),
    loops: loopsOf((f) => f.endsWith(`/cells/${n}.img`) && (f.startsWith(daemon.data) || f.startsWith('/cells/'))),
  }
}

// The kernel gives a dead namespace's number to the next one: a process of another cell proves nothing.
function ofAnotherCell(pid, c) {
  const tag = path.basename(c.run.replace(/\/\d+$/, ''))
  const m = read(`/proc/${pid}/cgroup`).match(new RegExp(`/holdfast/${tag}/(\\d+)`)) ?? read(`/proc/${pid}/cmdline`).match(new RegExp(`/${tag}/(\\d+)/spec`))
  return m !== null && m[1] !== c.n
}

// What is still on the host of a cell that cellOf saw before. Empty when it left nothing.
export function remains(c) {
  const left = []
  for (const p of [...c.shims, ...c.processes]) if (alive(p)) left.push(`process ${p.pid} (${read(`/proc/${p.pid}/comm`).trim()})`)
  for (const dir of c.cgroups) if (existsSync(dir)) left.push(`cgroup ${dir}`)
  for (const l of c.loops)
    if (read(`/sys/block/${l.name}/loop/backing_file`).trim().replace(/ \(deleted\)$/, '') === l.file) left.push(`loop device ${l.name}`)
  if (existsSync(c.run)) left.push(`directory ${c.run}`)
  if (existsSync(c.image)) left.push(`image ${c.image}`)
  const seen = new Set()
  for (const pid of pids()) {
    const net = link(`/proc/${pid}/ns/net`)
    if (net !== '' && c.netns.includes(net) && !ofAnotherCell(pid, c)) left.push(`network namespace ${net} (process ${pid})`)
    const ns = link(`/proc/${pid}/ns/mnt`)
    if (seen.has(ns)) continue
    seen.add(ns)
    if (read(`/proc/${pid}/mountinfo`).includes(` ${c.run}/`)) left.push(`mount below ${c.run} (seen by process ${pid})`)
  }
  return left
}

export async function nothingLeft(c, timeoutMs = 10_000) {
  let left
  try {
    await until('nothing is left', () => (left = remains(c)).length === 0, { timeoutMs, everyMs: 20 })
  } catch {
    throw new Error(`left on the host of cell ${c.n}: ${left.join('; ')}`)
  }
}

export const hasProcess = (pid) => startTime(pid) !== ''

// All cells that a daemon has on the host.
export function cells(daemon) {
  return list(daemon.runDir)
    .filter((n) => /^\d+$/.test(n))
    .map((n) => cell(daemon, n))
}
