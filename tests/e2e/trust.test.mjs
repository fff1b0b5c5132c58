// What the daemon tells a running box on its control socket: whom to trust, and asks it whose a connection is.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdtempSync, readFileSync, readdirSync, realpathSync, rmSync, existsSync } from 'node:fs'
import http from 'node:http'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { box } from './lib/suite.mjs'

const run = `/run/holdfast/${createHash('sha256').update(realpathSync(process.env.HF_E2E_DATA)).digest('hex').slice(0, 8)}`

// The cell of a sandbox: its supervisor wrote whose it is.
function controlSocket(id) {
  for (const n of readdirSync(run)) {
    for (const name of ['claim', 'spec']) {
      const file = path.join(run, n, name)
      if (existsSync(file) && readFileSync(file, 'utf8').split('\n').includes(`sandbox_id=${id}`)) return path.join(run, n, 'ctl.sock')
    }
  }
  throw new Error(`no cell of ${id}`)
}

function control(socketPath, route, body) {
  return new Promise((resolve, reject) => {
    const req = http.request({ socketPath, method: 'POST', path: route, headers: { 'content-type': 'application/json' } }, (res) => {
      let text = ''
      res.on('data', (d) => (text += d))
      res.on('end', () => resolve({ status: res.statusCode, body: text ? JSON.parse(text) : null }))
    })
    req.on('error', reject)
    req.end(JSON.stringify(body))
  })
}

// An authority and a certificate of it for origin.test.
function makeAuthority(t) {
  const dir = mkdtempSync(path.join(os.tmpdir(), 'hf-trust-'))
  t.after(() => rmSync(dir, { recursive: true, force: true }))
  const openssl = (...args) => execFileSync('openssl', args, { cwd: dir, stdio: 'pipe' })
  openssl('req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', 'ca.key', '-out', 'ca.pem', '-days', '2', '-subj', '/CN=trust test')
  openssl('req', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', 'leaf.key', '-out', 'leaf.csr', '-subj', '/CN=origin.test', '-addext', 'subjectAltName=DNS:origin.test')
  openssl('x509', '-req', '-in', 'leaf.csr', '-CA', 'ca.pem', '-CAkey', 'ca.key', '-CAcreateserial', '-out', 'leaf.pem', '-days', '2', '-copy_extensions', 'copy')
  const read = (f) => readFileSync(path.join(dir, f), 'utf8')
  return { ca: read('ca.pem'), chain: read('leaf.pem') + read('leaf.key') }
}

const SERVER = `
import http.server, ssl, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "2"); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *a): pass
s = http.server.ThreadingHTTPServer(("127.0.0.1", 8443), H)
c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); c.load_cert_chain("/tmp/chain.pem")
s.socket = c.wrap_socket(s.socket, server_side=True)
print("up", flush=True)
s.serve_forever()
`
const CLIENTS = {
  curl: `curl -s https://origin.test:8443/`,
  python: `python3 -c 'import urllib.request as u; print(u.urlopen("https://origin.test:8443/").read().decode(), end="")'`,
  node: `node -e 'require("https").get("https://origin.test:8443/", (r) => r.pipe(process.stdout)).on("error", () => process.exit(1))'`,
  git: `git ls-remote https://origin.test:8443/x 2>&1 | grep -qi certificate || printf ok`, // it speaks no git, but TLS
}

test('a certificate authority comes, changes and goes in a running box', async (t) => {
  const sbx = await box(t)
  const { ca, chain } = makeAuthority(t)
  const ctl = controlSocket(sbx.sandboxId)
  const store = '/etc/ssl/certs/ca-certificates.crt'
  const before = await sbx.files.read(store)
  await sbx.files.write('/tmp/chain.pem', chain)
  await sbx.files.write('/tmp/server.py', SERVER)
  await sbx.commands.run('echo 127.0.0.1 origin.test >> /etc/hosts', { user: 'root' })
  let up
  const listening = new Promise((r) => (up = r))
  await sbx.commands.run('python3 /tmp/server.py', { background: true, onStdout: () => up() })
  await listening
  const ask = async () => {
    const said = {}
    for (const [name, cmd] of Object.entries(CLIENTS)) said[name] = (await sbx.commands.run(`${cmd} || true`)).stdout
    return said
  }
  const nobody = { curl: '', python: '', node: '', git: '' }
  const all = { curl: 'ok', python: 'ok', node: 'ok', git: 'ok' }
  assert.deepEqual(await ask(), nobody)
  assert.equal((await control(ctl, '/init', { caBundle: ca })).status, 204)
  assert.deepEqual(await ask(), all)
  assert.equal((await control(ctl, '/init', { caBundle: makeAuthority(t).ca })).status, 204)
  assert.deepEqual(await ask(), nobody, 'replaced by another')
  assert.equal((await control(ctl, '/init', { caBundle: ca })).status, 204)
  await sbx.commands.run('update-ca-certificates', { user: 'root' })
  assert.deepEqual(await ask(), all, "the distribution's tool keeps it")
  assert.equal((await sbx.commands.run('env | grep -c ca-certificates.crt; stat -c %U:%a /usr/local/share/ca-certificates/holdfast.crt')).stdout, '6\nroot:644\n')
  assert.equal((await control(ctl, '/init', { caBundle: '' })).status, 204)
  assert.deepEqual(await ask(), nobody)
  assert.equal(await sbx.files.read(store), before, 'the store is as it was')
  assert.equal((await sbx.commands.run('env | grep -c SSL_CERT_FILE || true')).stdout, '0\n')
})

test('the box knows which exec has a connection, whoever runs it', async (t) => {
  const sbx = await box(t)
  const ctl = controlSocket(sbx.sandboxId)
  await sbx.files.write('/tmp/server.py', 'import socket, time\ns = socket.create_server(("127.0.0.1", 7000))\nkeep = []\nprint("up", flush=True)\nwhile True:\n    keep.append(s.accept())\n')
  let up
  const listening = new Promise((r) => (up = r))
  await sbx.commands.run('python3 /tmp/server.py', { background: true, onStdout: () => up() })
  await listening
  for (const user of ['user', 'root']) {
    const said = []
    const client = await sbx.commands.run(
      `bash -c 'python3 -c "import socket,time; c=socket.create_connection((\\"127.0.0.1\\",7000)); print(c.getsockname()[1],flush=True); time.sleep(60)"; true'; true`,
      { user, background: true, onStdout: (s) => said.push(s) },
    )
    for (let i = 0; i < 100 && said.length === 0; i++) await new Promise((r) => setTimeout(r, 50))
    const r = await control(ctl, '/owner', { port: Number(said[0]), address: '127.0.0.1' })
    assert.equal(r.status, 200, JSON.stringify(r))
    assert.equal(r.body.exec, String(client.pid))
    assert.notEqual(r.body.pid, client.pid)
  }
  assert.equal((await control(ctl, '/owner', { port: 9, address: '127.0.0.1' })).status, 404)
})
