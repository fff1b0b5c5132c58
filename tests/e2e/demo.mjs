// The main job, end to end: `./dev demo`. An unmodified e2b SDK works in a session; the sandbox below it is killed
// four ways in mid-work; after each the same session key gives a sandbox in which everything is still known.
//   node demo.mjs --data DIR --base BASE.tar [--json]
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { Sandbox } from 'e2b'
import { Daemon } from './lib/daemon.mjs'
import { alive, cellOf, nothingLeft } from './lib/host.mjs'
import { HttpClient, sleep, until } from './lib/http.mjs'

const { values: options } = parseArgs({
  options: { data: { type: 'string' }, base: { type: 'string' }, json: { type: 'boolean', default: false } },
})
const KEY = 'demo-agent:alice:1'
const MESSAGES = ['the invoice is due on the 3rd', 'the customer prefers e-mail', '持久化的记忆必须留下来']
const FILES = 200

const report = { steps: [], kills: [], ok: false }
const out = (text) => (options.json ? process.stderr : process.stdout).write(`${text}\n`)
const ms = (t) => `${t >= 9999.5 ? (t / 1000).toFixed(1) + ' s' : Math.round(t) + ' ms'}`.padStart(8)

// Runs one step, shows it with its time.
async function step(text, fn) {
  const t0 = performance.now()
  try {
    const note = await fn()
    const took = performance.now() - t0
    report.steps.push({ step: text, ms: Math.round(took) })
    out(`[${ms(took)}]  ${text}${note ? `: ${note}` : ''}`)
    return took
  } catch (e) {
    out(`[${ms(performance.now() - t0)}]  FAILED: ${text}`)
    throw e
  }
}

function check(condition, text) {
  if (!condition) throw new Error(text)
}

const daemon = new Daemon({ data: options.data })
let api // REST client with the minted key
let sdk // options of the SDK
let session
let sandbox
const hashes = new Map()

async function openSession() {
  const answer = await api.call('POST', '/v1/sessions', { key: KEY })
  session = answer.session
  // The SDK is not told anything else than the sandbox's id.
  sandbox = await Sandbox.connect(answer.sandbox.id, sdk)
  return answer
}

const agent = (...args) => sandbox.commands.run(['python3 /workspace/agent.py', KEY, ...args].map((a, i) => (i ? `'${a}'` : a)).join(' '))

// What the program recalls, and how many of the files still have their SHA-256.
async function recovered() {
  const { stdout } = await agent()
  const messages = MESSAGES.filter((m) => stdout.split('\n').includes(m)).length
  const sums = await sandbox.commands.run('cd /workspace/files && find . -type f -print0 | sort -z | xargs -0 sha256sum')
  let files = 0
  for (const line of sums.stdout.trim().split('\n')) {
    const [sum, name] = [line.slice(0, 64), line.slice(66)]
    if (hashes.get(name) === sum) files++
  }
  return { messages, files }
}

async function startUp() {
  await step('daemon up', async () => {
    await daemon.start()
    return daemon.url
  })
  await step('API key minted', async () => {
    sdk = await daemon.sdk()
    api = new HttpClient(daemon.url, { 'x-api-key': sdk.apiKey })
    return `${sdk.apiKey.slice(0, 12)}…`
  })
  await step('template `base` present', async () => ((await daemon.ensureBase(options.base)) ? 'imported now' : 'already there'))
  await step('what an earlier demo left is removed', async () => {
    const sessions = await api.call('GET', '/v1/sessions')
    for (const s of sessions.sessions ?? sessions) if (s.key === KEY) await api.call('DELETE', `/v1/sessions/${s.id}`)
  })
}

async function work() {
  await step(`session ${KEY} opened, SDK connected`, async () => {
    const answer = await openSession()
    return `sandbox ${answer.sandbox.id}`
  })
  await step('program uploaded', async () => (await sandbox.files.write('/workspace/agent.py', readFileSync(path.join(import.meta.dirname, 'lib/agent.py'), 'utf8'))).path)
  await step('program runs with three messages', async () => {
    const { stdout } = await agent(...MESSAGES)
    check(stdout === MESSAGES.map((m) => `${m}\n`).join(''), `the program answered ${JSON.stringify(stdout)}`)
    return 'it recalls all three'
  })
  await step(`${FILES} files in nested folders written`, async () => {
    const entries = []
    for (let i = 0; i < FILES; i++) {
      const name = `./d${i % 5}/e${i % 20}/f${i}.bin`
      const data = createHash('shake256', { outputLength: 64 + ((i * 977) % 40_000) }).update(`file ${i}`).digest()
      hashes.set(name, createHash('sha256').update(data).digest('hex'))
      entries.push({ path: `/workspace/files/${name.slice(2)}`, data: new Blob([data]) })
    }
    for (let i = 0; i < FILES; i += 50) await sandbox.files.write(entries.slice(i, i + 50))
    const { files } = await recovered()
    check(files === FILES, `only ${files} of ${FILES} files have the right SHA-256`)
  })
  await step('a command streams its output', async () => {
    const seen = []
    await sandbox.commands.run('for i in 1 2 3 4 5; do echo line $i; sleep 0.05; done', {
      onStdout: (data) => void seen.push({ data, at: performance.now() }),
    })
    const text = seen.map((s) => s.data).join('')
    check(text === 'line 1\nline 2\nline 3\nline 4\nline 5\n', `streamed ${JSON.stringify(text)}`)
    check(seen.length > 1 && seen.at(-1).at - seen[0].at > 100, 'the output came in one piece')
    return `${seen.length} pieces over ${Math.round(seen.at(-1).at - seen[0].at)} ms`
  })
  await step('a PTY is opened', async () => {
    let screen = ''
    const pty = await sandbox.pty.create({ cols: 80, rows: 24, onData: (d) => void (screen += Buffer.from(d).toString()) })
    await sandbox.pty.sendInput(pty.pid, Buffer.from('stty size; echo answer=$((6*7)); exit\n'))
    await pty.wait()
    check(screen.includes('24 80') && screen.includes('answer=42'), `the terminal shows ${JSON.stringify(screen.slice(-200))}`)
  })
}

// Something that is running when the blow falls. Its stream must end with an error, not hang.
async function startWork() {
  const handle = await sandbox.commands.run(`exec python3 /workspace/agent.py ${KEY} --work 2000 200`, { background: true, timeoutMs: 0 })
  await until('the work has begun', () => handle.stdout.includes('step 3'))
  const end = handle.wait().then(
    () => 'finished',
    (e) => e.constructor.name
  )
  return { handle, end }
}

async function killSandboxSomehow(what, cause, blow) {
  await startWork().then(async ({ end }) => {
    const old = sandbox.sandboxId
    const cell = cellOf(daemon, old)
    check(cell && cell.processes.length >= 2 && cell.shims.length === 1, `the host knows no cell of ${old}`)
    const t0 = performance.now()
    await blow(cell, old)
    await openSession()
    const { stdout } = await agent()
    const first = performance.now() - t0
    check(stdout.includes(MESSAGES[0]), 'the first answer does not know the first message')
    check(sandbox.sandboxId !== old, 'the session still names the killed sandbox')
    const { messages, files } = await recovered()
    const ended = await Promise.race([end, sleep(15_000).then(() => 'still open')])
    check(!['finished', 'still open'].includes(ended), `the cut command's stream is ${ended}`)
    await nothingLeft(cell)
    const state = await oldState(old)
    check(state.state === 'killed', `the old sandbox is reported as ${JSON.stringify(state)}`)
    check(cause.test(state.cause), `its cause is reported as ${JSON.stringify(state)}`)
    const info = await api.json('GET', `/sandboxes/${old}`)
    check(info.status === 404, `GET of the killed sandbox answers ${info.status}`)
    addKill({ what, first, messages, files, sandbox: 'new', oldState: `${state.state} (${state.cause})`, host: 'nothing left' })
  })
}

async function oldState(id) {
  return await api.call('GET', `/v1/sandboxes/${id}`)
}

function addKill(k) {
  check(k.messages === MESSAGES.length, `only ${k.messages} messages were recovered`)
  check(k.files === FILES, `only ${k.files} files were recovered`)
  report.kills.push({ ...k, first: undefined, first_answer_ms: Math.round(k.first) })
  out(`[${ms(k.first)}]  ${k.what} → ${k.sandbox} sandbox, ${k.messages} messages, ${k.files} files, old: ${k.oldState}, host: ${k.host}`)
}

// A command's stdout from byte `from` on: an extension of the E2B protocol (docs/api/envd.md).
async function spooled(pid, from) {
  const headers = { 'e2b-sandbox-id': sandbox.sandboxId, 'e2b-sandbox-port': '49983', 'x-access-token': sandbox.envdAccessToken }
  const res = await fetch(`${daemon.url}/holdfast/exec/${pid}/stdout?from=${from}`, { headers })
  check(res.ok, `the spool answers ${res.status}`)
  return await res.text()
}

// (c): the daemon alone. Nothing inside may notice.
async function killDaemon() {
  const id = sandbox.sandboxId
  const lines = 200
  const streamed = []
  const handle = await sandbox.commands.run(
    `exec python3 /workspace/agent.py ${KEY} --work ${lines} 4`,
    { background: true, timeoutMs: 0, onStdout: (d) => void streamed.push(d) }
  )
  handle.wait().catch(() => {})
  const background = await sandbox.commands.run('exec sleep 3600', { background: true, timeoutMs: 0 })
  background.wait().catch(() => {})
  await until('the work has begun', () => handle.stdout.includes('step 10'))
  const cell = cellOf(daemon, id)
  const t0 = performance.now()
  await daemon.kill9()
  await daemon.start()
  const answer = await openSession()
  const { stdout } = await agent()
  const first = performance.now() - t0
  check(answer.sandbox.id === id, 'the session has another sandbox after a restart of the daemon')
  check(stdout.includes(MESSAGES[0]), 'the first answer does not know the first message')
  const again = await sandbox.commands.connect(handle.pid, { timeoutMs: 0 })
  const list = await sandbox.commands.list()
  check(list.some((p) => p.pid === background.pid), `the background process ${background.pid} is not listed any more`)
  check(cell.processes.length >= 3 && cell.processes.every(alive), 'processes inside were lost')
  check(cell.shims.every(alive), 'the supervisor was lost')
  const end = await again.wait()
  check(end.exitCode === 0, `the command ended with ${end.exitCode}`)
  const expected = Array.from({ length: lines }, (_, i) => `step ${i + 1} of ${lines}\n`).join('')
  // What was streamed before the blow, and the rest from the spool at that cursor: complete, nothing twice.
  const before = streamed.join('')
  const rest = await spooled(handle.pid, before.length)
  check(before.length < expected.length && before + rest === expected, "the command's output is not complete")
  const { messages, files } = await recovered()
  addKill({ what: 'daemon (SIGKILL), restarted', first, messages, files, sandbox: 'same', oldState: 'running, same pids, output complete', host: 'untouched' })
  await background.kill()
}

// A program that keeps everything in its memory: it counts, and answers with how far it is.
const COUNTER = `
import itertools, time, os
for n in itertools.count(1):
    with open('/tmp/n.new', 'w') as f: f.write(f'{n} {os.getpid()}')
    os.replace('/tmp/n.new', '/tmp/n')
    time.sleep(0.01)
`
async function counted(sbx) {
  const [n, pid] = (await sbx.commands.run('cat /tmp/n || true')).stdout.split(' ').map(Number)
  return { n, pid }
}
async function goesOn(sbx, before) {
  const now = await until('the counter goes on', async () => {
    const c = await counted(sbx)
    return c.n > before.n && c
  })
  check(now.pid === before.pid, 'the program is another one')
  return `it was at ${before.n} and is at ${now.n}, pid ${now.pid}`
}

async function memory() {
  const before = {}
  let sbx
  await step('a program that counts in its memory runs in a sandbox', async () => {
    sbx = await Sandbox.create('base', { ...sdk, timeoutMs: 600_000 })
    await sbx.files.write('/tmp/counter.py', COUNTER)
    ;(await sbx.commands.run('python3 /tmp/counter.py', { background: true, timeoutMs: 0 })).wait().catch(() => {})
    await until('it counts', async () => (await counted(sbx)).n > 0 && Object.assign(before, await counted(sbx)))
  })
  await step('paused to the disk; daemon SIGKILL; resumed', async () => {
    Object.assign(before, await counted(sbx))
    await api.call('POST', `/sandboxes/${sbx.sandboxId}/pause`, { depth: 'cold' })
    check(!cellOf(daemon, sbx.sandboxId), 'the paused sandbox still has processes')
    await daemon.kill9()
    await daemon.start()
    sbx = await Sandbox.connect(sbx.sandboxId, { ...sdk, timeoutMs: 600_000 })
    return await goesOn(sbx, before)
  })
  await step('snapshot; sandbox killed; a new one from the snapshot', async () => {
    Object.assign(before, await counted(sbx))
    const snapshot = await sbx.createSnapshot()
    await sbx.kill()
    sbx = await Sandbox.create(snapshot.snapshotId, { ...sdk, timeoutMs: 600_000 })
    const note = await goesOn(sbx, before)
    await sbx.kill()
    await Sandbox.deleteSnapshot(snapshot.snapshotId, sdk)
    return note
  })
}

function table() {
  const head = ['killed', 'first answer', 'sandbox', 'messages', 'files', 'old sandbox', 'host']
  const rows = report.kills.map((k) => [k.what, ms(k.first_answer_ms).trim(), k.sandbox, `${k.messages}/${MESSAGES.length}`, `${k.files}/${FILES}`, k.oldState, k.host])
  const width = head.map((h, i) => Math.max(h.length, ...rows.map((r) => r[i].length)))
  const line = (r) => r.map((c, i) => c.padEnd(width[i])).join('  ').trimEnd()
  out('')
  out(line(head))
  out(width.map((w) => '-'.repeat(w)).join('  '))
  rows.forEach((r) => out(line(r)))
  out('')
}

const KILLS = [
  () => killSandboxSomehow('sandbox, through the API', /api/, (_cell, id) => Sandbox.kill(id, sdk)),
  () =>
    killSandboxSomehow('all its processes (SIGKILL)', /killed|crash|exit/, (cell) => {
      for (const p of cell.processes) if (alive(p)) process.kill(p.pid, 'SIGKILL')
    }),
  () => killDaemon(),
  () =>
    killSandboxSomehow('supervisor and daemon (SIGKILL)', /lost|crash|supervisor/, async (cell) => {
      process.kill(daemon.child.pid, 'SIGKILL')
      for (const shim of cell.shims) process.kill(shim.pid, 'SIGKILL')
      await daemon.exit
      await daemon.start()
    }),
]

async function finish() {
  if (!daemon.running) return
  if (session) await api.json('DELETE', `/v1/sessions/${session.id}`)
  await daemon.finish()
}

async function main() {
  const t0 = performance.now()
  out('holdfast demo: a session that survives its sandbox')
  try {
    await startUp()
    await work()
    for (const kill of KILLS) await kill()
    await memory()
    report.ok = true
  } catch (e) {
    report.error = e.message
    out(`\n${e.stack}\n`)
  }
  try {
    await step('daemon stopped, nothing left running', finish)
  } catch (e) {
    report.ok = false
    report.error ??= e.message
    out(`\n${e.stack}\n`)
    if (daemon.running) daemon.child.kill('SIGKILL')
  }
  api?.close()
  table()
  report.total_ms = Math.round(performance.now() - t0)
  out(report.ok ? `The session survived all four, and so did memory (${ms(report.total_ms).trim()}).` : `The demo failed: ${report.error} (log: ${daemon.logFile})`)
  if (options.json) process.stdout.write(`${JSON.stringify(report, null, 2)}\n`)
  process.exit(report.ok ? 0 : 1)
}

await main()
