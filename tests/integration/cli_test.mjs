// The command line against a mock server: what needs no sandbox to be true.
import assert from 'node:assert/strict'
import { execFile, execFileSync, spawn } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { promisify } from 'node:util'
import { Mock } from './cli_mock.mjs'

const BIN = process.env.HOLDFAST_BIN ?? path.resolve(import.meta.dirname, '../../build/holdfast')
const mock = await new Mock().start()
after(() => mock.stop())
const dir = mkdtempSync(path.join(tmpdir(), 'hf-cli-test-'))
after(() => rmSync(dir, { recursive: true, force: true }))

// Never the synchronous form: the mock lives in this process.
const shell = async (script, words = [], env = {}) => (await promisify(execFile)('bash', ['-c', script, 'bash', ...words], { env: { ...clean, ...env } })).stdout

const clean = { PATH: process.env.PATH, HOME: dir, HOLDFAST_URL: mock.url, HOLDFAST_API_KEY: 'e2b_0123' }

// input: text for stdin (a pipe); undefined = /dev/null. onStart(child, textSoFar) sees the output as it comes.
function run(args, { env = {}, input, onData, cwd } = {}) {
  return new Promise((resolve) => {
    const child = spawn(BIN, args, { env: { ...clean, ...env }, cwd, stdio: [input === undefined ? 'ignore' : 'pipe', 'pipe', 'pipe'] })
    const out = []
    let stderr = ''
    child.stdout.on('data', (d) => {
      out.push(d)
      onData?.(child, Buffer.concat(out).toString())
    })
    child.stderr.on('data', (d) => (stderr += d))
    if (input !== undefined) {
      child.stdin.on('error', () => {})
      child.stdin.end(input)
    }
    const timer = setTimeout(() => child.kill('SIGKILL'), 20_000)
    child.on('close', (code, signal) => {
      clearTimeout(timer)
      resolve({ code: code ?? signal, stdout: Buffer.concat(out).toString(), bytes: Buffer.concat(out), stderr })
    })
  })
}

async function ok(args, opts) {
  const r = await run(args, opts)
  assert.equal(r.code, 0, `${args.join(' ')}: ${r.code}\n${r.stdout}${r.stderr}`)
  return r
}

const exec = (id, ...words) => run(['sandbox', 'exec', id, '--', ...words])

test('wrong words end with 2 and say what would be right', async () => {
  for (const [args, text] of [
    [['sandbx'], /did you mean 'sandbox'/],
    [['sandbox', 'kil', 'x'], /did you mean 'sandbox kill'/],
    [['sandbox', 'ls', '--al'], null],
    [['sandbox', 'create', '--memory', 'lots'], /--memory takes a size/],
    [['sandbox', 'create', '--timeout', 'soon'], /--timeout takes a time/],
    [['sandbox', 'create', '--metadata', 'x'], /NAME=VALUE/],
    [['sandbox', 'exec', 'i1'], /needs a COMMAND/],
    [['sandbox', 'exec', 'i1', '-c', 'true', 'x'], /not both/],
    [['sandbox', 'cp', 'a', 'b'], /ID:PATH/],
    [['sandbox', 'cp', 'i1:a', 'i2:b'], /ID:PATH/],
    [['sandbox', 'kill'], /needs an ID or --all/],
    [['sandbox', 'shell', 'i1'], /needs a terminal/],
    [['completion', 'tcsh'], /bash, zsh and fish/],
    [['serve', '--listen', 'nonsense'], /HOST:PORT/],
    [['serve', '--set', 'warm_pol=1'], /did you mean 'warm_pool'/],
    [['--url', 'ftp://x', 'sandbox', 'ls'], /http:\/\/127/],
  ]) {
    const r = await run(args)
    if (text) {
      assert.equal(r.code, 2, args.join(' '))
      assert.match(r.stderr, text)
    } else assert.equal(r.code, 0, r.stderr) // an unambiguous prefix of an option is fine
  }
})

test('help of every command names its usage and exits with 0', async () => {
  const top = (await ok(['--help'])).stdout
  const commandsOf = (text) => [...(text.match(/^Commands:\n([\s\S]*?)\n\n/m)?.[1] ?? '').matchAll(/^ {2}(\w+)/gm)].map((m) => m[1])
  const groups = commandsOf(top)
  assert.ok(groups.includes('sandbox') && groups.includes('doctor'))
  for (const g of groups) {
    const text = (await ok(['help', g])).stdout
    assert.match(text, new RegExp(`^Usage: holdfast ${g}`, 'm'))
    for (const sub of commandsOf(text)) assert.match((await ok([g, sub, '--help'])).stdout, /Examples:/, `${g} ${sub}`)
  }
  assert.equal((await run([])).code, 2)
})

test('completion scripts are valid and know every command', async () => {
  for (const name of ['bash', 'zsh']) {
    const script = (await ok(['completion', name])).stdout
    const file = path.join(dir, 'completion.bash')
    writeFileSync(file, script)
    execFileSync('bash', ['-n', file])
    if (name === 'zsh') continue
    const complete = async (...words) => {
      const text = await shell(`source ${file}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _holdfast; printf '%s\\n' "\${COMPREPLY[@]}"`, words, { PATH: `${path.dirname(BIN)}:${process.env.PATH}` })
      return text.split('\n')
    }
    assert.ok((await complete('holdfast', 'sa')).includes('sandbox'))
    assert.ok((await complete('holdfast', 'sbx', 'e')).includes('exec'))
    assert.ok((await complete('holdfast', 'sandbox', 'ls', '--st')).includes('--state'))
    assert.ok((await complete('holdfast', 'sandbox', 'ls', '--state', 'p')).includes('paused'))
    mock.box('icomplete')
    assert.ok((await complete('holdfast', 'sandbox', 'info', 'icom')).includes('icomplete'))
    // An alias of one group is no alias in another.
    assert.ok((await complete('holdfast', 'snapshot', 'info', '--j')).includes('--json'))
    assert.ok((await complete('holdfast', 'template', 'rm', '--j')).includes('--json'))
    mock.sandboxes.clear()
  }
  const fish = (await ok(['completion', 'fish'])).stdout
  for (const word of ['sandbox', 'exec', 'serve', 'doctor', 'metadata']) assert.ok(fish.includes(word))
})

test('addresses and keys: flag, HOLDFAST_*, E2B_*', async () => {
  const bare = { HOLDFAST_URL: '', HOLDFAST_API_KEY: '' }
  await ok(['sandbox', 'ls'], { env: { ...bare, E2B_API_URL: mock.url, E2B_API_KEY: 'e2b_0123' } })
  await ok(['--url', `${mock.url}/`, 'sandbox', 'ls', '--api-key', 'e2b_0123'], { env: { HOLDFAST_URL: 'http://127.0.0.1:1', HOLDFAST_API_KEY: 'no' } })
  await ok(['sandbox', 'ls'], { env: { E2B_API_URL: 'http://127.0.0.1:1', E2B_API_KEY: 'no' } })
  // E2B_SANDBOX_URL is the data plane of E2B_API_URL only.
  mock.box('idata')
  await ok(['sandbox', 'exec', 'idata', '--', 'exit', '0'], { env: { E2B_SANDBOX_URL: 'http://127.0.0.1:1' } })
  const r = await run(['sandbox', 'exec', 'idata', '--', 'exit', '0'], { env: { ...bare, E2B_API_URL: mock.url, E2B_API_KEY: 'e2b_0123', E2B_SANDBOX_URL: 'http://127.0.0.1:1' } })
  assert.equal(r.code, 125)
  assert.match(r.stderr, /127\.0\.0\.1:1/)
  // A proxy for the Internet must not see loopback traffic.
  await ok(['sandbox', 'ls'], { env: { http_proxy: 'http://127.0.0.1:9', HTTP_PROXY: 'http://127.0.0.1:9' } })
})

test('errors: a sentence and a hint; JSON with --json', async () => {
  const down = await run(['sandbox', 'ls', '--url', 'http://127.0.0.1:1'])
  assert.equal(down.code, 1)
  assert.match(down.stderr, /no holdfast daemon answers at http:\/\/127\.0\.0\.1:1/)
  assert.match(down.stderr, /holdfast serve/)
  const key = await run(['sandbox', 'ls', '--json', '--api-key', 'e2b_99'])
  assert.equal(key.code, 1)
  assert.equal(key.stdout, '')
  const e = JSON.parse(key.stderr)
  assert.deepEqual([e.code, e.message], [401, 'Invalid API key'])
  assert.match(e.hint, /holdfast key create/)
  const web = await run(['sandbox', 'info', 'x', '--url', `${mock.url}/prefix`])
  assert.equal(web.code, 1)
  mock.end('iold', 'timeout', 'its time was over')
  const gone = await run(['sandbox', 'info', 'iold'])
  assert.equal(gone.code, 1)
  assert.match(gone.stderr, /sandbox iold is gone: killed \(timeout\): its time was over/)
  assert.equal((await run(['sandbox', 'exec', 'iold', '--', 'true'])).code, 125)
})

test('create sends what was asked for, and nothing else', async () => {
  const id = (await ok(['sandbox', 'create'])).stdout.trim()
  assert.match(id, /^i[a-z0-9]+$/)
  assert.deepEqual(mock.lastCreate, { templateID: 'base' })
  await ok(['sbx', 'create', 'mine', '-t', '1h30m', '-m', 'a=b=c', '-m', 'd=', '-e', 'X=1', '--memory', '2G', '--disk', '1.5G', '--cpu', '0.5'])
  assert.deepEqual(mock.lastCreate, { templateID: 'mine', timeout: 5400, metadata: { a: 'b=c', d: '' }, envVars: { X: '1' }, memoryMB: 2048, diskSizeMB: 1536, cpuCount: 0.5 })
  const made = JSON.parse((await ok(['sandbox', 'create', '--json'])).stdout)
  assert.ok(made.sandboxID && made.envdAccessToken)
  const no = await run(['sandbox', 'create', 'nope'])
  assert.match(no.stderr, /template 'nope' not found/)
  assert.match(no.stderr, /template ls/)
})

test('ls: table, ids, JSON, pages, filters', async () => {
  mock.sandboxes.clear()
  for (let i = 0; i < 250; i++) mock.box(`i${String(i).padStart(3, '0')}`, { metadata: { n: String(i), evil: '\u001b[31m' } })
  const first = await ok(['sandbox', 'ls'])
  assert.match(first.stdout, /^ID +STATE +TEMPLATE +STARTED +ENDS IN +CPU +MEMORY +METADATA\n/)
  assert.match(first.stdout, /^i000 +running +base +1m 1s ago +(1h|59m)/m)
  assert.ok(!first.stdout.includes('\u001b'), 'text of a sandbox must not reach the terminal raw')
  assert.equal(first.stdout.trim().split('\n').length, 101)
  assert.match(first.stderr, /--all/)
  assert.equal((await ok(['sandbox', 'ls', '--all', '--quiet'])).stdout.trim().split('\n').length, 250)
  assert.equal(JSON.parse((await ok(['sandbox', 'ls', '--all', '--json'])).stdout).length, 250)
  await ok(['sandbox', 'ls', '-m', 'a b=c&d', '-s', 'running'])
  assert.ok(mock.requests.at(-1).url.includes('metadata=a%252520b%3Dc%252526d'), mock.requests.at(-1).url)
  mock.sandboxes.clear()
  assert.match((await ok(['sandbox', 'ls'])).stderr, /no sandboxes/)
  assert.equal((await ok(['sandbox', 'ls', '--json'])).stdout, '[]\n')
})

test('kill: several, missing ones, --all', async () => {
  mock.box('ia')
  mock.box('ib')
  const r = await run(['sandbox', 'kill', 'ia', 'imissing', 'ib'])
  assert.equal(r.code, 1)
  assert.equal(r.stdout, 'ia\nib\n')
  assert.match(r.stderr, /imissing/)
  mock.box('ic')
  mock.box('id')
  assert.deepEqual(JSON.parse((await ok(['sandbox', 'kill', '--all', '--json'])).stdout), ['ic', 'id'])
  assert.equal(mock.sandboxes.size, 0)
})

test("exec ends with the command's code", async () => {
  const id = mock.box('iexec')
  for (const code of [0, 1, 2, 42, 125, 255]) assert.equal((await exec(id, 'exit', String(code))).code, code)
  assert.equal((await exec(id, 'signal')).code, 137)
  assert.equal((await exec(id, 'segv')).code, 139)
  const r = await exec(id, 'out')
  assert.deepEqual([r.stdout, r.stderr], ['out\n', 'err\n'])
  const big = await exec(id, 'big')
  assert.equal(big.bytes.length, 400 * 48 * 1024)
})

test('exec sends command, user, cwd, env, timeout as the protocol wants them', async () => {
  const id = mock.box('iargs')
  await ok(['sandbox', 'exec', id, '--user', 'root', '--cwd', '/etc', '-e', 'A=b', '-t', '30s', 'exit', '0', '--user', 'x'])
  const { msg, headers } = mock.lastStart
  assert.deepEqual(msg, { process: { cmd: 'exit', args: ['0', '--user', 'x'], envs: { A: 'b' }, cwd: '/etc' }, stdin: false })
  assert.equal(headers.authorization, `Basic ${Buffer.from('root:').toString('base64')}`)
  assert.equal(headers['connect-timeout-ms'], '30000')
  assert.equal(headers['content-type'], 'application/connect+json')
  await run(['sandbox', 'exec', id, '-n', '-c', 'echo a | wc'])
  assert.deepEqual(mock.lastStart.msg.process, { cmd: '/bin/bash', args: ['-l', '-c', 'echo a | wc'] })
  assert.equal(mock.lastStart.headers.authorization, undefined)
})

test('exec forwards a pipe to stdin, whole and in order', async () => {
  const id = mock.box('icat')
  const input = Array.from({ length: 60_000 }, (_, i) => `line ${i}\n`).join('')
  const r = await ok(['sandbox', 'exec', id, 'cat'], { input })
  assert.equal(r.stdout, input)
  assert.equal((await ok(['sandbox', 'exec', id, 'cat'], { input: '' })).stdout, '')
  await ok(['sandbox', 'exec', '-n', id, 'exit', '0'], { input: 'unread' })
  assert.equal(mock.lastStart.msg.stdin, false)
})

test('exec: Ctrl-C asks, a second one kills', async () => {
  const id = mock.box('isig')
  let sent = 0
  const once = await run(['sandbox', 'exec', id, 'sleep'], { onData: (child, text) => text.includes('ready') && sent++ === 0 && child.kill('SIGINT') })
  assert.equal(once.code, 7)
  sent = 0
  const twice = await run(['sandbox', 'exec', id, 'sleep', 'stubborn'], {
    onData: (child, text) => {
      if (!text.includes('ready') || sent++) return
      child.kill('SIGINT')
      setTimeout(() => child.kill('SIGINT'), 300)
    },
  })
  assert.equal(twice.code, 137)
})

test('exec: what ends it from outside has a code and a sentence', async () => {
  const late = await exec(mock.box('ilate'), 'deadline')
  assert.equal(late.code, 124)
  const refused = await exec(mock.box('iref'), 'refused')
  assert.equal(refused.code, 125)
  assert.match(refused.stderr, /cwd '\/nowhere' does not exist/)
  const dead = await exec(mock.box('idie'), 'die')
  assert.equal(dead.code, 125)
  assert.match(dead.stderr, /the sandbox ended while the command ran: killed \(oom\): out of memory/)
  const paused = await exec(mock.box('ipaused', { state: 'paused' }), 'exit', '0')
  assert.equal(paused.code, 125)
  assert.match(paused.stderr, /paused/)
})

test('exec attaches again when the connection breaks and the sandbox lives', async () => {
  const r = await exec(mock.box('idrop'), 'drop')
  assert.equal(r.code, 9, r.stderr)
  assert.equal(r.stdout, 'before\nafter stdout=7,stderr=0\n')
  assert.match(r.stderr, /attached again/)
})

test('exec --json and --detach', async () => {
  const id = mock.box('ijson')
  const r = await run(['sandbox', 'exec', id, '--json', 'out'])
  assert.equal(r.code, 0)
  const j = JSON.parse(r.stdout)
  assert.deepEqual([j.exit_code, j.signal, j.timed_out, j.stdout, j.stderr, j.truncated], [0, null, false, 'out\n', 'err\n', false])
  const s = await run(['--json', 'sandbox', 'exec', id, 'signal'])
  assert.equal(s.code, 137)
  assert.deepEqual([JSON.parse(s.stdout).exit_code, JSON.parse(s.stdout).signal], [137, 9])
  assert.equal(JSON.parse((await run(['--json', 'sandbox', 'exec', id, 'bytes'])).stdout).stdout, '\ufffda\u00e9')
  const d = await ok(['sandbox', 'exec', '--detach', id, 'sleep'])
  assert.match(d.stdout, /^\d+\n$/)
})

test('exec: a closed reader ends it as a pipe would', async () => {
  const id = mock.box('ipipe')
  const text = await shell(`"${BIN}" sandbox exec ${id} -- big | head -c 10; echo " \${PIPESTATUS[0]}"`)
  assert.equal(text, 'xxxxxxxxxx 141\n')
})

test('exec: a slow reader gets everything', async () => {
  const id = mock.box('islow')
  // Twice what is kept in memory, read only after it all was sent.
  const text = await shell(`"${BIN}" sandbox exec ${id} -- big | { sleep 2; wc -c; }; echo "\${PIPESTATUS[0]}"`)
  assert.equal(text, `${400 * 48 * 1024}\n0\n`)
})

test('exec: output that was lost on the way is no success', async () => {
  const id = mock.box('imissed')
  const r = await exec(id, 'missed', '0')
  assert.equal(r.code, 125)
  assert.match(r.stderr, /1000 bytes of output were lost/)
  assert.equal((await exec(id, 'missed', '4')).code, 4)
  assert.equal(JSON.parse((await run(['--json', 'sandbox', 'exec', id, 'missed', '0'])).stdout).truncated, true)
})

test('shell: raw mode and back, size, keys, exit code', async () => {
  const id = mock.box('ishell')
  const script = `stty rows 33 cols 99; before=$(stty -g); "${BIN}" sandbox shell ${id} -- tty; code=$?; after=$(stty -g); [ "$before" = "$after" ] && echo restored; echo code=$code`
  const child = spawn('script', ['-qec', `bash -c '${script}'`, '/dev/null'], { env: { ...clean, TERM: 'xterm' } })
  let screen = ''
  let asked = false
  child.stdout.on('data', (d) => {
    screen += d
    if (screen.includes('size 99x33') && !asked) {
      asked = true
      child.stdin.write('\u0003')
      setTimeout(() => child.stdin.write('q'), 300)
    }
  })
  await new Promise((resolve) => child.on('close', resolve))
  assert.match(screen, /got "\\u0003"/, screen) // Ctrl-C is a key in there
  assert.match(screen, /restored/)
  assert.match(screen, /code=5/)
})

test('shell: the terminal is put back when the sandbox dies', async () => {
  const id = mock.box('ishell2')
  const script = `before=$(stty -g); "${BIN}" sandbox shell ${id} -- die; code=$?; after=$(stty -g); [ "$before" = "$after" ] && echo restored; echo code=$code`
  const child = spawn('script', ['-qec', `bash -c '${script}'`, '/dev/null'], { env: { ...clean, TERM: 'xterm' } })
  let screen = ''
  child.stdout.on('data', (d) => (screen += d))
  await new Promise((resolve) => child.on('close', resolve))
  assert.match(screen, /restored/)
  assert.match(screen, /code=125/)
  assert.match(screen, /ended while the command ran/)
})

test('cp: files, folders, streams, both ways', async () => {
  const id = mock.box('icp')
  mock.files.clear()
  mock.files.set('/home', null)
  const tree = path.join(dir, 'tree')
  mkdirSync(path.join(tree, 'sub/empty'), { recursive: true })
  const blob = Buffer.alloc(3_000_000, 'abc')
  writeFileSync(path.join(tree, 'big'), blob)
  writeFileSync(path.join(tree, 'sub/empty.txt'), '')
  symlinkSync('big', path.join(tree, 'link'))
  symlinkSync('/etc', path.join(tree, 'dirlink'))
  const up = await ok(['sandbox', 'cp', tree, `${id}:/home`])
  assert.match(up.stderr, /skipped .*dirlink/)
  assert.deepEqual([...mock.files.keys()].sort(), ['/home', '/home/tree', '/home/tree/big', '/home/tree/link', '/home/tree/sub', '/home/tree/sub/empty', '/home/tree/sub/empty.txt'])
  assert.ok(mock.files.get('/home/tree/big').equals(blob))
  assert.deepEqual(JSON.parse((await ok(['--json', 'sandbox', 'cp', path.join(tree, 'big'), `${id}:/x`])).stdout), { files: 1, bytes: 3_000_000, skipped: 0 })
  await ok(['sandbox', 'cp', '-', `${id}:/from-stdin`], { input: 'streamed' })
  assert.equal(mock.files.get('/from-stdin').toString(), 'streamed')
  assert.equal((await ok(['sandbox', 'cp', `${id}:/from-stdin`, '-'])).stdout, 'streamed')
  const back = path.join(dir, 'back')
  await ok(['sandbox', 'cp', `${id}:/home/tree`, back])
  assert.ok(readFileSync(path.join(back, 'big')).equals(blob))
  assert.ok(existsSync(path.join(back, 'sub/empty')))
  await ok(['sandbox', 'cp', `${id}:/home/tree/big`, `${back}/sub/`])
  assert.ok(readFileSync(path.join(back, 'sub/big')).equals(blob))
  await ok(['sandbox', 'cp', './tree/big', `${id}:rel`], { cwd: dir })
  assert.ok(mock.files.has('rel'))
})

test('cp: failures leave nothing half done here', async () => {
  const id = mock.box('icp2')
  mock.files.clear()
  mock.files.set('/broken', Buffer.from('half'))
  mock.files.set('/evil', null)
  const target = path.join(dir, 'kept')
  writeFileSync(target, 'old')
  assert.equal((await run(['sandbox', 'cp', `${id}:/broken`, target])).code, 1)
  assert.equal(readFileSync(target, 'utf8'), 'old')
  assert.ok(!readdirSync(dir).some((n) => n.startsWith('.hf-')))
  const evil = await run(['sandbox', 'cp', `${id}:/evil`, path.join(dir, 'evil')])
  assert.equal(evil.code, 1)
  assert.ok(!existsSync(path.join(dir, 'escaped')))
  const missing = await run(['sandbox', 'cp', `${id}:/none`, target])
  assert.match(missing.stderr, /not found/)
  const full = await run(['sandbox', 'cp', target, `${id}:/full`])
  assert.equal(full.code, 1)
  assert.match(full.stderr, /not enough disk space/)
  assert.equal((await run(['sandbox', 'cp', '/no/such/file', `${id}:/x`])).code, 1)
})

test('logs: levels, follow to the end', async () => {
  const id = mock.box('ilogs')
  const at = (ms, level, message) => ({ timestamp: new Date(ms).toISOString(), level, message, fields: { k: 'v' } })
  const now = Date.now()
  mock.logs = [at(now, 'info', 'one'), at(now, 'debug', 'two'), at(now + 1, 'error', 'three')]
  const r = await ok(['sandbox', 'logs', id])
  assert.match(r.stdout, /one {2}k=v\n.*two.*\n.*three/)
  assert.ok(!(await ok(['sandbox', 'logs', id, '--level', 'error'])).stdout.includes('one'))
  setTimeout(() => mock.logs.push(at(now + 1, 'info', 'four')), 300)
  setTimeout(() => {
    mock.logs.push(at(now + 2, 'info', 'five'))
    mock.end(id, 'api')
  }, 1500)
  const lines = (await ok(['sandbox', 'logs', id, '--follow', '--json'])).stdout.trim().split('\n').map((l) => JSON.parse(l).message)
  assert.deepEqual(lines, ['one', 'two', 'three', 'four', 'five'])
})

test('sessions by key', async () => {
  const key = 'agent:alice:1'
  const opened = JSON.parse((await ok(['session', 'open', key, '--json'])).stdout)
  assert.equal(opened.session.key, key)
  assert.equal((await ok(['session', 'open', key, '--quiet'])).stdout.trim(), opened.sandbox.id)
  assert.match((await ok(['session', 'ls'])).stdout, /agent:alice:1/)
  assert.equal((await ok(['session', 'ls', '-q'])).stdout, `${key}\n`)
  assert.match((await ok(['session', 'info', key])).stdout, new RegExp(opened.session.id))
  assert.match((await ok(['session', 'info', opened.session.id])).stdout, /agent:alice:1/)
  assert.equal((await run(['session', 'exec', key, '--', 'exit', '3'])).code, 3)
  mock.end(opened.sandbox.id, 'oom')
  assert.equal((await run(['session', 'exec', opened.session.id, 'exit', '4'])).code, 4)
  await ok(['session', 'close', key])
  await ok(['session', 'rm', key])
  assert.equal((await run(['session', 'info', key])).code, 1)
  const bad = await run(['session', 'open', 'nokey'])
  assert.match(bad.stderr, /AGENT:USER:CONVERSATION/)
})

test('template import: a tar as it is, a folder as a tar, stdin', async () => {
  const root = path.join(dir, 'rootfs')
  mkdirSync(path.join(root, 'etc'), { recursive: true })
  writeFileSync(path.join(root, 'etc/hostname'), 'box\n', { mode: 0o640 })
  writeFileSync(path.join(root, 'big'), Buffer.alloc(2_000_000, 7))
  symlinkSync('etc/hostname', path.join(root, 'link'))
  execFileSync('ln', [path.join(root, 'big'), path.join(root, 'hard')])
  assert.equal((await ok(['template', 'import', 'mine', root])).stdout, 'tplnew\n')
  assert.equal(mock.imported.name, 'mine')
  const tar = path.join(dir, 'got.tar')
  writeFileSync(tar, mock.imported.bytes)
  const list = execFileSync('tar', ['tvf', tar, '--numeric-owner']).toString()
  assert.match(list, /^-rw-r----- 0\/0 +4 .* etc\/hostname$/m)
  assert.match(list, /link -> etc\/hostname/)
  assert.match(list, /^h.*(hard link to big|big link to hard)/m)
  await ok(['template', 'import', 'again', tar])
  assert.ok(mock.imported.bytes.equals(readFileSync(tar)))
  await ok(['template', 'import', 'piped'], { input: 'tar bytes' })
  assert.equal(mock.imported.bytes.toString(), 'tar bytes')
  const bad = await run(['template', 'import', 'bad', tar])
  assert.equal(bad.code, 1)
  assert.match(bad.stderr, /the tar is damaged\n {2}hint: make it again/)
  assert.match((await run(['template', 'import', 'x', '/no/such.tar'])).stderr, /no\/such\.tar/)
  assert.match((await ok(['template', 'ls'])).stdout, /tpl1 +base +ready +700 MiB/)
  assert.match((await ok(['template', 'info', 'base'])).stdout, /tpl1/)
  assert.equal((await run(['template', 'rm', 'none'])).code, 1)
})

test('doctor: tries, tells, leaves nothing', async () => {
  const data = path.join(dir, 'data')
  mkdirSync(data)
  const r = await run(['doctor', '--data', data, '--listen', '127.0.0.1:0', '--json'])
  assert.ok([0, 1].includes(r.code), r.stderr)
  const j = JSON.parse(r.stdout)
  assert.equal(j.ok, r.code === 0)
  assert.equal(j.checks[0].id, 'userns')
  for (const c of j.checks) {
    assert.ok(['ok', 'info', 'warn', 'fail', 'skip'].includes(c.status), c.id)
    assert.ok(c.detail.length > 3, c.id)
    if (c.status === 'warn' || c.status === 'fail') assert.ok(c.cost && c.fix, `${c.id} names cost and fix`)
  }
  assert.deepEqual(readdirSync(data), [])
  const long = await run(['doctor', '--data', data], { env: { HOLDFAST_RUN_DIR: `/run/${'x'.repeat(120)}` } })
  assert.equal(long.code, 1)
  assert.match(long.stdout, /too long/)
})

test('doctor: the freezer stops a process, CRIU saves one', async (t) => {
  if (process.getuid() !== 0) return t.skip('needs root')
  const check = async (id, env) => {
    const r = await run(['doctor', '--listen', '127.0.0.1:0', '--json'], { env })
    return JSON.parse(r.stdout).checks.find((c) => c.id === id)
  }
  const pause = await check('pause', {})
  assert.ok(['ok', 'warn'].includes(pause.status), JSON.stringify(pause))
  const none = await check('memory', { HOLDFAST_CRIU: '/no/criu' })
  assert.equal(none.status, 'warn')
  assert.match(none.detail, /no CRIU at \/no\/criu/)
  assert.match(none.fix, /dev setup/)
  /* a program that takes the request and does nothing */
  const bad = await check('memory', { HOLDFAST_CRIU: '/bin/true' })
  assert.equal(bad.status, 'warn')
  assert.match(bad.detail, /could not be saved/)
  assert.match(bad.cost, /not running processes/)
  const own = await check('memory', {})
  if (/no CRIU at/.test(own.detail)) return t.skip('no CRIU: ./dev setup')
  assert.equal(own.status, 'ok', JSON.stringify(own))
  assert.match(own.detail, /CRIU \d+\.\d+.* saved a process and restored it/)
})

test('doctor: the network, and a firewall of the host that stands in its way', async (t) => {
  const script = `nft add table ip filter && nft 'add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }' && "${BIN}" doctor --listen 127.0.0.1:0 --json || true`
  if (process.getuid() !== 0) return t.skip('needs root')
  const of = (text, id) => JSON.parse(text.slice(text.indexOf('{'))).checks.find((c) => c.id === id)
  const text = await shell(`unshare -n sh -c '${script.replaceAll("'", `'"'"'`)}'`)
  const wall = of(text, 'firewall')
  assert.equal(wall.status, 'warn', text)
  assert.match(wall.detail, /ip filter FORWARD/)
  assert.match(wall.fix, /nft insert rule ip filter FORWARD iifname "hf-\*" accept/)
  assert.equal(of(text, 'nftables').status, 'ok')
  assert.equal(of(text, 'veth').status, 'ok')
  const free = await shell(`unshare -n "${BIN}" doctor --listen 127.0.0.1:0 --json || true`)
  assert.equal(of(free, 'firewall').status, 'ok')
  const off = await shell(`HOLDFAST_NETWORK=off "${BIN}" doctor --listen 127.0.0.1:0 --json || true`)
  assert.equal(of(off, 'veth').status, 'info')
  const missing = await shell(`HOLDFAST_NETWORK=required HOLDFAST_NETD_PATH=/no/netd "${BIN}" doctor --listen 127.0.0.1:0 --json || true`)
  assert.equal(of(missing, 'netd').status, 'fail')
})

test('doctor: user namespaces blocked by a sysctl come first, with the command that helps', async (t) => {
  // The limit belongs to a user namespace: one of our own can be set to 0 without touching the host.
  const script = `unshare -Ur sh -c 'echo 0 > /proc/sys/user/max_user_namespaces && "${BIN}" doctor --listen 127.0.0.1:0'; echo "code $?"`
  const text = await shell(script)
  if (!text.includes('user namespaces')) return t.skip('no user namespace can be made here')
  assert.match(text, /^fail {2}user namespaces +user\.max_user_namespaces is 0\n +cost: .*\n +fix: +sysctl -w user\.max_user_namespaces=65536/)
  assert.match(text, /code 1/)
})

test('docs/cli.md names every command, option-bearing setting and index entry', async () => {
  const root = path.resolve(import.meta.dirname, '../..')
  const doc = readFileSync(path.join(root, 'docs/cli.md'), 'utf8')
  const names = async (...at) => [...((await ok(['help', ...at])).stdout.match(/^Commands:\n([\s\S]*?)\n\n/m)?.[1] ?? '').matchAll(/^ {2}(\w+)/gm)].map((m) => m[1])
  for (const group of await names()) {
    const section = doc.split(/^## /m).find((part) => part.split('\n')[0].split(/[ ,]+/).includes(group))
    assert.ok(section, `a section "${group}"`)
    for (const verb of await names(group)) assert.ok(section.includes(`holdfast ${group} ${verb}`) || new RegExp(`^### .*\\b${verb}\\b`, 'm').test(section), `${group} ${verb}`)
  }
  const loader = readFileSync(path.join(root, 'src/control/config.c'), 'utf8')
  for (const [, setting] of loader.matchAll(/^ {4}\{"(\w+)", [A-Z0-9]+,/gm)) assert.ok(doc.includes(`\`${setting}\``), `setting ${setting}`)
  const index = readFileSync(path.join(root, 'docs/adr/README.md'), 'utf8')
  for (const page of readdirSync(path.join(root, 'docs/adr'))) if (/^\d/.test(page)) assert.ok(index.includes(page), `docs/adr/README.md lists ${page}`)
})
