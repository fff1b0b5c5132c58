// Starts and ends `holdfast serve` on a data directory of its own, and gives clients for it.
import { spawn, execFile } from 'node:child_process'
import { closeSync, existsSync, mkdirSync, openSync, readFileSync, realpathSync, statSync } from 'node:fs'
import { createHash } from 'node:crypto'
import path from 'node:path'
import { promisify } from 'node:util'
import { HttpClient, until } from './http.mjs'

const exec = promisify(execFile)
export const ROOT = path.resolve(import.meta.dirname, '../../..')
export const HOLDFAST = process.env.HOLDFAST_BIN ?? path.join(ROOT, 'build/holdfast')

// A harness that ends must not leave its daemons: not after an exception, not after Ctrl-C.
const started = new Set()
process.on('exit', () => started.forEach((child) => child.kill('SIGKILL')))
for (const [signal, status] of [['SIGINT', 130], ['SIGTERM', 143], ['SIGHUP', 129]]) process.on(signal, () => process.exit(status))

export class Daemon {
  // env: extra environment of the daemon; args: extra flags
  constructor({ data, env = {}, args = [] }) {
    mkdirSync(data, { recursive: true, mode: 0o700 })
    this.data = realpathSync(data)
    this.env = env
    this.args = args
    this.logFile = path.join(this.data, 'daemon.log')
    this.runDir = `/run/holdfast/${createHash('sha256').update(this.data).digest('hex').slice(0, 8)}`
    this.keys = new Map()
  }

  async start({ env = {}, expectDeath = false, port } = {}) {
    // The same port again after a restart: clients keep their address.
    const listen = `127.0.0.1:${port ?? this.port ?? 0}`
    const from = existsSync(this.logFile) ? statSync(this.logFile).size : 0
    const log = openSync(this.logFile, 'a')
    const child = spawn(HOLDFAST, ['serve', '--data', this.data, '--listen', listen, ...this.args], {
      stdio: ['ignore', log, log],
      env: { ...process.env, ...this.env, ...env },
    })
    closeSync(log)
    this.child = child
    started.add(child)
    child.on('exit', () => started.delete(child))
    this.exit = new Promise((resolve) => child.on('exit', (code, signal) => resolve({ code, signal })))
    let ended
    this.exit.then((e) => (ended = e))
    const url = await until(
      `the daemon listens (see ${this.logFile})`,
      () => {
        const text = readFileSync(this.logFile).subarray(from).toString()
        const m = text.match(/listening.*?url"?[=:]\s*"?(http:\/\/[^\s"]+)/)
        if (m) return m[1]
        if (ended) {
          if (expectDeath) return 'dead'
          throw new Error(`the daemon ended (${ended.signal ?? ended.code}) before it listened:\n${text.slice(-3000)}`)
        }
      },
      { timeoutMs: 60_000 }
    )
    if (url === 'dead') return this
    this.url = url
    this.httpsUrl = readFileSync(this.logFile).subarray(from).toString().match(/https_url=(\S+)/)?.[1]
    this.port = Number(new URL(url).port)
    return this
  }

  get running() {
    return this.child?.exitCode === null && this.child?.signalCode === null
  }

  // SIGTERM and wait: sandboxes go on by design.
  async stop() {
    if (!this.running) return
    this.child.kill('SIGTERM')
    const timer = setTimeout(() => this.child.kill('SIGKILL'), 30_000)
    const end = await this.exit
    clearTimeout(timer)
    if (end.signal === 'SIGKILL') throw new Error('the daemon did not end within 30 s of SIGTERM')
    if (end.code !== 0) throw new Error(`the daemon ended with ${end.signal ?? end.code}`)
  }

  async kill9() {
    this.child.kill('SIGKILL')
    await this.exit
  }

  async cli(args, { env = {}, input, ok = true, timeoutMs = 600_000 } = {}) {
    const run = exec(HOLDFAST, args, {
      env: { ...process.env, HOLDFAST_URL: this.url ?? '', HOLDFAST_API_KEY: this.keys.get('default') ?? '', ...env },
      timeout: timeoutMs,
      maxBuffer: 64 << 20,
    })
    run.child.stdin.end(input)
    try {
      const { stdout, stderr } = await run
      return { code: 0, stdout, stderr }
    } catch (e) {
      if (ok || typeof e.code !== 'number')
        throw new Error(`holdfast ${args.join(' ')}: ${e.signal ?? e.code}\n${e.stderr ?? e.message}`)
      return { code: e.code, stdout: e.stdout, stderr: e.stderr }
    }
  }

  // An API key of that tenant; minted once.
  async key(tenant = 'default') {
    if (!this.keys.has(tenant)) {
      const args = ['key', 'create', '--data', this.data, '--json', '--name', 'tests']
      if (tenant !== 'default') args.push('--tenant', tenant)
      const { stdout } = await this.cli(args)
      this.keys.set(tenant, JSON.parse(stdout).key)
    }
    return this.keys.get(tenant)
  }

  async client(tenant = 'default', opts) {
    return new HttpClient(this.url, { 'x-api-key': await this.key(tenant) }, opts)
  }

  // Options for the SDK's static calls.
  async sdk(tenant = 'default') {
    return { apiKey: await this.key(tenant), apiUrl: this.url, sandboxUrl: this.url }
  }

  // The template `base`: imported from the tar when the daemon does not have it. True when it was imported now.
  async ensureBase(tar) {
    const api = await this.client()
    try {
      const templates = await api.call('GET', '/templates')
      if (templates.some((t) => [...(t.aliases ?? []), ...(t.names ?? []), t.templateID].includes('base'))) return false
      await this.cli(['template', 'import', 'base', tar])
      return true
    } finally {
      api.close()
    }
  }

  // Ends every sandbox and session, then the daemon.
  async finish() {
    if (!this.running) return
    const tenants = [...this.keys.keys()]
    for (const tenant of tenants) {
      const api = await this.client(tenant)
      for (;;) {
        const list = await api.call('GET', '/v2/sandboxes?limit=100')
        if (list.length === 0) break
        await Promise.all(list.map((s) => api.json('DELETE', `/sandboxes/${s.sandboxID}`)))
      }
      api.close()
    }
    await this.stop()
  }
}
