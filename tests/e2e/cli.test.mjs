// The command line against the daemon: tables for people, --json for programs, exit codes.
import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { HOLDFAST } from './lib/daemon.mjs'
import { daemonFacts, sdk, url } from './lib/suite.mjs'

const env = { ...process.env, HOLDFAST_URL: url, HOLDFAST_API_KEY: sdk.apiKey, NO_COLOR: '1' }

function holdfast(args, { input = '', extra = {} } = {}) {
  return new Promise((resolve) => {
    const child = execFile(HOLDFAST, args, { env: { ...env, ...extra }, timeout: 60_000, maxBuffer: 64 << 20 }, (e, stdout, stderr) =>
      resolve({ code: e ? (e.code ?? e.signal) : 0, stdout, stderr })
    )
    child.stdin.on('error', () => {})
    child.stdin.end(input)
  })
}

async function ok(args, opts) {
  const r = await holdfast(args, opts)
  assert.equal(r.code, 0, `holdfast ${args.join(' ')}: ${r.code}\n${r.stdout}${r.stderr}`)
  return r
}

async function box(t) {
  const { stdout } = await ok(['sandbox', 'create', 'base', '--timeout', '5m', '--metadata', 'from=cli', '--json'])
  const s = JSON.parse(stdout)
  const id = s.sandboxID ?? s.id ?? s.sandbox_id
  assert.match(id, /^[a-z0-9]+$/)
  t.after(() => holdfast(['sandbox', 'kill', id]))
  return id
}

test('version, help, completion', async () => {
  assert.match((await ok(['version'])).stdout, /\d+\.\d+\.\d+/)
  assert.match((await ok(['--help'])).stdout, /sandbox/)
  assert.match((await ok(['sandbox', '--help'])).stdout, /create/)
  for (const shell of ['bash', 'zsh', 'fish']) assert.match((await ok(['completion', shell])).stdout, /holdfast/)
  const wrong = await holdfast(['sandbx'])
  assert.notEqual(wrong.code, 0)
  assert.match(wrong.stderr, /sandbx/)
})

test('doctor says what this host has, in both forms', async () => {
  const r = await holdfast(['doctor', '--json'])
  assert.ok([0, 1].includes(r.code), r.stderr)
  assert.equal(typeof JSON.parse(r.stdout), 'object')
  assert.match((await holdfast(['doctor'])).stdout, /user namespaces/i)
})

test('sandbox create, ls, info, exec, kill', async (t) => {
  const id = await box(t)
  const list = JSON.parse((await ok(['sandbox', 'ls', '--json', '--metadata', 'from=cli'])).stdout)
  assert.ok(JSON.stringify(list).includes(id))
  assert.ok((await ok(['sandbox', 'ls'])).stdout.includes(id))
  assert.ok(JSON.stringify(JSON.parse((await ok(['sandbox', 'info', id, '--json'])).stdout)).includes(id))
  const r = await ok(['sandbox', 'exec', id, '--', 'sh', '-c', 'echo out; echo err >&2'])
  assert.deepEqual([r.stdout, r.stderr], ['out\n', 'err\n'])
  await ok(['sandbox', 'kill', id])
  assert.notEqual((await holdfast(['sandbox', 'info', id])).code, 0)
})

test("exec: the command's exit code, stdin, user, cwd, env", async (t) => {
  const id = await box(t)
  assert.equal((await holdfast(['sandbox', 'exec', id, '--', 'sh', '-c', 'exit 42'])).code, 42)
  const big = 'x'.repeat(300_000)
  assert.equal((await ok(['sandbox', 'exec', id, '--', 'wc', '-c'], { input: big })).stdout.trim(), '300000')
  const r = await ok(['sandbox', 'exec', '--user', 'root', '--cwd', '/etc', '--env', 'A=b', id, '--', 'sh', '-c', 'echo $(whoami) $(pwd) $A'])
  assert.equal(r.stdout, 'root /etc b\n')
  assert.equal((await ok(['sandbox', 'exec', id, '-c', 'echo $0 | grep -c bash'])).stdout.trim(), '1')
})

test('cp both ways, a file and a folder', async (t) => {
  const id = await box(t)
  const dir = mkdtempSync(path.join(tmpdir(), 'hf-harness-cp-'))
  t.after(() => rmSync(dir, { recursive: true }))
  writeFileSync(path.join(dir, 'a'), 'content')
  await ok(['sandbox', 'cp', path.join(dir, 'a'), `${id}:/home/user/a`])
  assert.equal((await ok(['sandbox', 'exec', id, '--', 'cat', '/home/user/a'])).stdout, 'content')
  await ok(['sandbox', 'cp', `${id}:/home/user/a`, path.join(dir, 'b')])
  assert.equal(readFileSync(path.join(dir, 'b'), 'utf8'), 'content')
})

test('logs', async (t) => {
  const id = await box(t)
  await ok(['sandbox', 'logs', id])
})

test('session open, ls, exec, close, rm', async (t) => {
  const key = `cli:${Math.random().toString(36).slice(2)}:1`
  const opened = JSON.parse((await ok(['session', 'open', key, '--json'])).stdout)
  t.after(() => holdfast(['session', 'rm', key]))
  assert.equal((opened.session ?? opened).key, key)
  assert.ok((await ok(['session', 'ls'])).stdout.includes(key))
  assert.equal((await ok(['session', 'exec', key, '--', 'sh', '-c', 'echo kept > /workspace/x; echo ok'])).stdout, 'ok\n')
  await ok(['session', 'close', key])
  // exec on a closed session opens it again, with the same workspace.
  assert.equal((await ok(['session', 'exec', key, '--', 'cat', '/workspace/x'])).stdout, 'kept\n')
})

test('key create, ls, revoke: without the daemon’s help, taking effect at once', async () => {
  const data = ['--data', daemonFacts.data]
  const made = JSON.parse((await ok(['key', 'create', ...data, '--name', 'short-lived', '--json'])).stdout)
  assert.match(made.key, /^e2b_[0-9a-f]{40}$/)
  const withIt = (k) => fetch(`${url}/v2/sandboxes`, { headers: { 'x-api-key': k } }).then((r) => r.status)
  assert.equal(await withIt(made.key), 200)
  const list = (await ok(['key', 'ls', ...data])).stdout
  assert.ok(list.includes('short-lived'))
  assert.ok(!list.includes(made.key), 'the key itself is shown once only')
  await ok(['key', 'revoke', ...data, made.id])
  assert.equal(await withIt(made.key), 401)
})

test('template ls; a small template imported, used, removed', async (t) => {
  assert.match((await ok(['template', 'ls'])).stdout, /base/)
  const missing = await holdfast(['template', 'import', 'nothing', '/no/such.tar'])
  assert.notEqual(missing.code, 0)
  assert.match(missing.stderr, /no\/such\.tar/)
  const gone = await holdfast(['template', 'rm', 'no-such-template'])
  assert.notEqual(gone.code, 0)
  t.diagnostic('import of a whole tree is covered by the base template')
})

test('errors are sentences with a hint: no daemon, no key, wrong id', async () => {
  const down = await holdfast(['sandbox', 'ls'], { extra: { HOLDFAST_URL: 'http://127.0.0.1:1' } })
  assert.notEqual(down.code, 0)
  assert.match(down.stderr, /127\.0\.0\.1:1/)
  const bare = await holdfast(['sandbox', 'ls'], { extra: { HOLDFAST_API_KEY: '', E2B_API_KEY: '' } })
  assert.notEqual(bare.code, 0)
  assert.match(bare.stderr, /key/i)
  const wrong = await holdfast(['sandbox', 'exec', 'inotthere000000000', '--', 'true'])
  assert.notEqual(wrong.code, 0)
})

test("E2B's variables work as well", async () => {
  const r = await ok(['sandbox', 'ls'], { extra: { HOLDFAST_URL: '', HOLDFAST_API_KEY: '', E2B_API_URL: url, E2B_API_KEY: sdk.apiKey } })
  assert.equal(r.code, 0)
})

test('shell in a terminal', async (t) => {
  const id = await box(t)
  // `script` gives the CLI a terminal of its own.
  const child = spawn('script', ['-qec', `${HOLDFAST} sandbox shell ${id}`, '/dev/null'], { env: { ...env, TERM: 'xterm' } })
  let screen = ''
  child.stdout.on('data', (d) => (screen += d))
  setTimeout(() => child.stdin.write('echo sum=$((40+2)); exit 3\n'), 1500)
  const code = await new Promise((resolve) => child.on('exit', resolve))
  assert.match(screen, /sum=42/)
  assert.equal(code, 3)
})
