// A small server that speaks just enough of the API for the command line: REST, files, and scripted processes
// over Connect streams. Everything is in memory.
import http from 'node:http'

const envelope = (flags, value) => {
  const text = Buffer.from(JSON.stringify(value))
  const head = Buffer.alloc(5)
  head[0] = flags
  head.writeUInt32BE(text.length, 1)
  return Buffer.concat([head, text])
}
const b64 = (s) => Buffer.from(s).toString('base64')

async function body(req) {
  const parts = []
  for await (const p of req) parts.push(p)
  return Buffer.concat(parts)
}

export class Mock {
  constructor() {
    this.sandboxes = new Map() // id -> detail
    this.ended = new Map() // id -> row of /v1
    this.sessions = new Map() // key -> {session, sandbox}
    this.files = new Map() // path -> Buffer, or null for a folder
    this.processes = new Map()
    this.requests = []
    this.logs = []
    this.keys = new Set(['e2b_0123'])
    this.nextPid = 100
    this.server = http.createServer((req, res) => this.route(req, res).catch((e) => res.destroy(e)))
  }

  async start() {
    await new Promise((resolve) => this.server.listen(0, '127.0.0.1', resolve))
    this.url = `http://127.0.0.1:${this.server.address().port}`
    return this
  }

  stop() {
    this.server.closeAllConnections()
    this.server.close()
  }

  box(id, extra = {}) {
    const now = Date.now()
    this.sandboxes.set(id, {
      templateID: 'tpl1', alias: 'base', sandboxID: id, clientID: 'x', envdVersion: '0.6.13', envdAccessToken: 'tok', domain: null,
      startedAt: new Date(now - 61_000).toISOString(), endAt: new Date(now + 3_600_000).toISOString(),
      cpuCount: 2, memoryMB: 512, diskSizeMB: 1024, state: 'running', metadata: {}, ...extra,
    })
    return id
  }

  end(id, cause, detail = '') {
    this.sandboxes.delete(id)
    this.ended.set(id, { id, state: 'killed', cause, detail })
  }

  json(res, status, value, headers = {}) {
    const text = value === undefined ? '' : JSON.stringify(value)
    res.writeHead(status, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text), ...headers })
    res.end(text)
  }

  fail(res, status, message, extra = {}) {
    this.json(res, status, { code: status, message, ...extra })
  }

  async route(req, res) {
    const url = new URL(req.url, this.url)
    this.requests.push({ method: req.method, url: req.url, headers: req.headers })
    if (req.headers['e2b-sandbox-id']) return this.dataPlane(req, res, url)
    if (!this.keys.has(req.headers['x-api-key'])) return this.fail(res, 401, 'Invalid API key')
    const parts = url.pathname.split('/').slice(1).map(decodeURIComponent)
    if (parts[0] === 'v2') parts.shift()
    if (parts[0] === 'sandboxes') return this.restSandboxes(req, res, url, parts)
    if (parts[0] === 'v1') return this.restOurs(req, res, url, parts)
    if (parts[0] === 'templates' && req.method === 'GET' && parts[1] !== 'none') {
      const base = { templateID: 'tpl1', aliases: ['base'], names: ['base'], buildStatus: 'ready', diskSizeMB: 700, spawnCount: 3, createdAt: new Date().toISOString() }
      return this.json(res, 200, parts[1] ? base : [base])
    }
    if (parts[0] === 'templates') return this.fail(res, 404, `template '${parts[1]}' not found`)
    return this.fail(res, 404, 'not found')
  }

  async restSandboxes(req, res, url, parts) {
    const id = parts[1]
    if (!id && req.method === 'POST') {
      const spec = JSON.parse(await body(req))
      this.lastCreate = spec
      if (spec.templateID === 'nope') return this.fail(res, 404, "template 'nope' not found")
      return this.json(res, 201, this.sandboxes.get(this.box(`i${Math.random().toString(36).slice(2, 12)}`, { metadata: spec.metadata ?? {} })))
    }
    if (!id) {
      const all = [...this.sandboxes.values()]
      const from = Number(url.searchParams.get('nextToken') ?? 0)
      const limit = Number(url.searchParams.get('limit'))
      const more = from + limit < all.length ? { 'x-next-token': String(from + limit) } : {}
      return this.json(res, 200, all.slice(from, from + limit), more)
    }
    if (parts[2] === 'logs') return this.json(res, 200, { logs: this.logs.filter((l) => Date.parse(l.timestamp) >= Number(url.searchParams.get('cursor') ?? 0)) })
    if (!this.sandboxes.has(id)) return this.fail(res, 404, `Sandbox "${id}" doesn't exist or you don't have access to it`)
    if (parts[2]) {
      this.lastBody = JSON.parse((await body(req)) || '{}')
      return this.json(res, 204)
    }
    if (req.method === 'DELETE') {
      this.end(id, 'api')
      return this.json(res, 204)
    }
    return this.json(res, 200, this.sandboxes.get(id))
  }

  async restOurs(req, res, url, parts) {
    if (parts[1] === 'sandboxes') return this.ended.has(parts[2]) ? this.json(res, 200, this.ended.get(parts[2])) : this.fail(res, 404, 'no such sandbox')
    if (parts[1] === 'templates') {
      this.imported = { name: url.searchParams.get('name'), bytes: await body(req), type: req.headers['content-type'] }
      if (this.imported.name === 'bad') return this.fail(res, 400, 'the tar is damaged', { hint: 'make it again' })
      return this.json(res, 201, { template_id: 'tplnew', name: this.imported.name, bytes: 1, sha256: '00', public: true })
    }
    const found = [...this.sessions.values()].find((s) => [s.session.id, s.session.key].includes(parts[2]))
    if (!parts[2] && req.method === 'POST') {
      const { key } = JSON.parse(await body(req))
      if (!/^[^:]+:[^:]+:[^:]+$/.test(key)) return this.fail(res, 400, 'key must be agent:user:conversation')
      if (!this.sessions.has(key))
        this.sessions.set(key, { session: { id: `ses_${this.sessions.size}`, key, state: 'open', sandbox_id: null, metadata: {}, opened_at: new Date().toISOString() } })
      const s = this.sessions.get(key)
      if (!this.sandboxes.has(s.sandbox?.id)) s.sandbox = { id: this.box(`is${this.nextPid++}`), state: 'running' }
      s.session.sandbox_id = s.sandbox.id
      return this.json(res, 200, s)
    }
    if (!parts[2]) return this.json(res, 200, { sessions: [...this.sessions.values()].map((s) => s.session), next_cursor: null })
    if (!found) return this.fail(res, 404, 'no such session')
    if (req.method === 'DELETE') this.sessions.delete(found.session.key)
    return req.method === 'GET' ? this.json(res, 200, found) : this.json(res, 204)
  }

  // ---- data plane ----

  async dataPlane(req, res, url) {
    const id = req.headers['e2b-sandbox-id']
    if (!this.sandboxes.has(id)) return this.json(res, 502, { sandboxId: id, message: 'The sandbox was not found', code: 502 })
    if (req.headers['x-access-token'] !== 'tok' || req.headers['e2b-sandbox-port'] !== '49983') return this.fail(res, 401, 'no token')
    if (url.pathname === '/files') return this.restFiles(req, res, url)
    const method = url.pathname.split('/')[2]
    const data = await body(req)
    if (['Start', 'Connect'].includes(method)) return this.stream(req, res, method, JSON.parse(data.subarray(5)), id)
    const msg = JSON.parse(data)
    const p = this.processes.get(msg.process?.pid)
    if (url.pathname.startsWith('/filesystem.')) return this.filesystem(res, method, msg)
    if (!p) return this.json(res, 404, { code: 'not_found', message: `process with pid ${msg.process?.pid} not found` })
    p[`on${method}`]?.(msg)
    return this.json(res, 200, {})
  }

  async restFiles(req, res, url) {
    const path = url.searchParams.get('path')
    if (req.method === 'POST') {
      const content = await body(req)
      if (path.includes('full')) return this.fail(res, 507, 'not enough disk space available')
      this.files.set(path, content)
      return this.json(res, 200, [{ path, name: path.split('/').pop(), type: 'file' }])
    }
    const content = this.files.get(path)
    if (!content) return this.fail(res, 404, `path '${path}' does not exist`)
    if (path.includes('broken')) {
      res.writeHead(200, { 'content-length': content.length + 10 })
      return res.write(content, () => res.destroy())
    }
    res.writeHead(200, { 'content-length': content.length })
    return res.end(content)
  }

  filesystem(res, method, { path }) {
    const entry = (p) => ({ name: p.split('/').pop(), path: p, type: this.files.get(p) === null ? 'FILE_TYPE_DIRECTORY' : 'FILE_TYPE_FILE' })
    if (method === 'MakeDir') {
      if (this.files.has(path)) return this.json(res, 409, { code: 'already_exists', message: 'directory already exists' })
      this.files.set(path, null)
      return this.json(res, 200, { entry: entry(path) })
    }
    if (!this.files.has(path)) return this.json(res, 404, { code: 'not_found', message: `file not found: ${path}` })
    if (method === 'Stat') return this.json(res, 200, { entry: entry(path) })
    const inside = [...this.files.keys()].filter((k) => k.startsWith(`${path}/`) && !k.slice(path.length + 1).includes('/'))
    const entries = inside.map(entry)
    if (path.includes('evil')) entries.push({ name: '../escaped', path: '/escaped', type: 'FILE_TYPE_FILE' })
    return this.json(res, 200, { entries })
  }

  // ---- scripted processes: the command's name is the script ----

  stream(req, res, method, msg, id) {
    const out = (event) => res.write(envelope(0, { event }))
    const close = (error) => res.end(envelope(2, error ? { error } : {}))
    const end = (code, status = `exit status ${code}`, exited = true) => {
      out({ end: { ...(code ? { exitCode: code, error: status } : {}), ...(exited ? { exited } : {}), status } })
      close()
    }
    this.lastStart = { msg, headers: req.headers }
    res.writeHead(200, { 'content-type': 'application/connect+json' })
    if (method === 'Connect') return this.reconnect(msg, req.headers['holdfast-cursor'], out, end, close)
    const { cmd, args = [] } = msg.process
    if (cmd === 'refused') return close({ code: 'invalid_argument', message: "cwd '/nowhere' does not exist" })
    const pid = this.nextPid++
    const p = { pid, out, end, input: [] }
    this.processes.set(pid, p)
    out({ start: { pid } })
    this[`cmd_${cmd}`]?.({ p, out, end, close, res, args, id, msg })
    return undefined
  }

  reconnect(msg, cursor, out, end, close) {
    const p = this.processes.get(msg.process.pid)
    if (!p) return close({ code: 'not_found', message: `process with pid ${msg.process.pid} not found` })
    out({ start: { pid: p.pid } })
    out({ data: { stdout: b64(`after ${cursor}\n`) } })
    return end(9)
  }

  cmd_exit({ end, args }) {
    end(Number(args[0]))
  }

  cmd_out({ out, end }) {
    out({ data: { stdout: b64('out\n') } })
    out({ keepalive: {} })
    out({ data: { stderr: b64('err\n') } })
    end(0)
  }

  cmd_signal({ out, end }) {
    end(-1, 'signal: killed', false)
  }

  cmd_segv({ end }) {
    end(-1, 'signal: segmentation fault (core dumped)', false)
  }

  cmd_cat({ p, out, end }) {
    p.onSendInput = ({ input }) => out({ data: { stdout: input.stdin } })
    p.onCloseStdin = () => end(0)
  }

  // Ends by SIGTERM with 7; SIGTERM is ignored when an argument says so.
  cmd_sleep({ p, out, end, args }) {
    out({ data: { stdout: b64('ready\n') } })
    p.onSendSignal = ({ signal }) => {
      if (signal === 'SIGNAL_SIGKILL') end(-1, 'signal: killed', false)
      else if (args[0] !== 'stubborn') end(7)
    }
  }

  cmd_deadline({ close }) {
    close({ code: 'deadline_exceeded', message: 'context deadline exceeded' })
  }

  cmd_die({ res, id }) {
    setTimeout(() => {
      this.end(id, 'oom', 'out of memory')
      res.destroy()
    }, 50)
  }

  cmd_drop({ out, res }) {
    out({ data: { stdout: b64('before\n') } })
    setTimeout(() => res.destroy(), 50)
  }

  cmd_big({ out, end }) {
    const chunk = b64(Buffer.alloc(48 * 1024, 'x'))
    for (let i = 0; i < 400; i++) out({ data: { stdout: chunk } })
    end(0)
  }

  cmd_missed({ out, end, args }) {
    out({ data: { stdout: b64('x') }, missed: 1000 })
    end(Number(args[0]))
  }

  cmd_bytes({ out, end }) {
    out({ data: { stdout: Buffer.from([0xff, 0x61, 0xc3, 0xa9]).toString('base64') } })
    end(0)
  }

  // A terminal: says its size, echoes, follows resizes, ends at "q".
  cmd_tty({ p, out, end, msg }) {
    const say = (s) => out({ data: { pty: b64(s) } })
    say(`size ${msg.pty.size.cols}x${msg.pty.size.rows}\r\n`)
    p.onUpdate = ({ pty }) => say(`resized ${pty.size.cols}x${pty.size.rows}\r\n`)
    p.onSendInput = ({ input }) => {
      const text = Buffer.from(input.pty, 'base64').toString()
      say(`got ${JSON.stringify(text)}\r\n`)
      if (text.includes('q')) end(5)
    }
  }
}
