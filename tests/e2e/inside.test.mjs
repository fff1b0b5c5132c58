// What a hostile program inside a sandbox can do: probes of files, processes and the kernel's surface, and bombs.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { after, before, describe, test } from 'node:test'
import { Sandbox } from 'e2b'
import { box, sdk } from './lib/suite.mjs'
import { sleep, until } from './lib/http.mjs'

const source = readFileSync(path.join(import.meta.dirname, 'lib/probes.py'), 'utf8')
const names = [...source.matchAll(/^@probe\ndef (\w+)/gm)].map((m) => m[1])

describe('probes from inside, as root there', () => {
  let found
  let sbx
  before(async () => {
    sbx = await Sandbox.create('base', sdk)
    await sbx.files.write('/tmp/probes.py', source)
    const r = await sbx.commands.run(`python3 /tmp/probes.py ${sbx.envdAccessToken}`, { user: 'root' })
    found = JSON.parse(r.stdout)
  })
  after(() => sbx?.kill())
  for (const name of names) test(name.replaceAll('_', ' '), () => assert.equal(found[name], ''))
})

test('file names round-trip: newline, 255 bytes, odd bytes', async (t) => {
  const sbx = await box(t)
  for (const name of ['new\nline', 'x'.repeat(255), 'tab\tand "quotes"']) {
    await sbx.files.write(`names/${name}`, name)
    assert.equal(await sbx.files.read(`names/${name}`), name)
    assert.ok((await sbx.files.list('names')).some((e) => e.name === name))
  }
  // Bytes that are not UTF-8 do not break a listing.
  await sbx.commands.run(`python3 -c "open(b'/home/user/names/bad\\xff\\xfe', 'w').close()"`)
  assert.equal((await sbx.files.list('names')).length, 4)
})

test('a symlink swapped during reads and writes never leads out of the sandbox', async (t) => {
  const sbx = await box(t)
  const host = readFileSync('/etc/hostname', 'utf8')
  const racer = await sbx.commands.run(
    'mkdir -p real; echo inside > real/hostname; while true; do ln -sfn real swap; ln -sfn /../../../../etc swap; done',
    { background: true, timeoutMs: 0 }
  )
  for (let i = 0; i < 200; i++) {
    const text = await sbx.files.read('swap/hostname').catch(() => '')
    if (host.trim() !== '') assert.notEqual(text.trim(), host.trim())
    await sbx.files.write('swap/planted', 'x').catch(() => {})
  }
  await racer.kill()
  assert.throws(() => readFileSync('/etc/planted'), { code: 'ENOENT' })
})

test('fork bomb: capped, the sandbox still answers, and dies at once', async (t) => {
  const sbx = await box(t)
  const bomb = await sbx.commands.run(`python3 -c "
import os, time
while True:
    try:
        if os.fork() == 0: time.sleep(3600); os._exit(0)
    except OSError: time.sleep(0.01)
"`, { background: true, timeoutMs: 0 })
  await sleep(1500)
  const entries = await sbx.files.list('/')
  assert.ok(entries.length > 5, 'files still work')
  await bomb.kill()
  const t0 = performance.now()
  assert.equal(await sbx.kill(), true)
  assert.ok(performance.now() - t0 < 3000, `kill took ${performance.now() - t0} ms`)
})

test('memory bomb: OOM inside, the sandbox lives or says that it ended', async (t) => {
  const sbx = await box(t)
  const e = await sbx.commands.run(`python3 -c "
a = []
while True: a.append(bytearray(10_000_000))
"`).catch((x) => x)
  assert.ok(e instanceof Error)
  const r = await sbx.commands.run('echo still here')
  assert.equal(r.stdout, 'still here\n')
})

test('memory in tmpfs and shared memory is charged', async (t) => {
  const sbx = await box(t)
  const e = await sbx.commands.run('head -c 2000000000 /dev/zero > /dev/shm/x').catch((x) => x)
  assert.ok(e instanceof Error, '2 GB fitted into /dev/shm')
  await sbx.commands.run('rm -f /dev/shm/x')
})

test('full disk: ENOSPC inside, 507 through the API, deleting frees it', async (t) => {
  const sbx = await box(t)
  const e = await sbx.commands.run('head -c 3000000000 /dev/zero > big', { timeoutMs: 120_000 }).catch((x) => x)
  assert.match(e.stderr ?? e.message, /No space left on device/)
  const up = await sbx.files.write('more', new Blob([Buffer.alloc(20_000_000)])).catch((x) => x)
  assert.equal(up.constructor.name, 'NotEnoughSpaceError', up.message)
  await sbx.commands.run('rm big')
  await sbx.files.write('more', 'fits again')
  assert.equal(await sbx.files.read('more'), 'fits again')
})

test('a million inodes: stops at the limit, the sandbox works on', { timeout: 180_000 }, async (t) => {
  const sbx = await box(t)
  const r = await sbx.commands.run(`python3 -c "
import os
os.makedirs('many')
n = 0
try:
    for n in range(1_000_000):
        os.close(os.open(f'many/{n}', os.O_CREAT | os.O_WRONLY))
    print('all', n)
except OSError as e:
    print('stopped', n, e.errno)
"`, { timeoutMs: 150_000 })
  assert.match(r.stdout, /^(stopped \d+ 28|all 999999)/)
  await sbx.commands.run('echo ok > /dev/shm/ok && cat /dev/shm/ok')
})

test('kill -9 -1 as root inside: the sandbox lives on', async (t) => {
  const sbx = await box(t)
  await sbx.commands.run('kill -9 -1', { user: 'root' }).catch(() => {})
  await until('it answers again', async () => (await sbx.commands.run('echo ok').catch(() => ({}))).stdout === 'ok\n', { timeoutMs: 10_000, everyMs: 200 })
})

test('1,000 processes', async (t) => {
  const sbx = await box(t)
  const r = await sbx.commands.run('for i in $(seq 1000); do sleep 30 & done 2>/tmp/err; jobs -p | wc -l', { timeoutMs: 60_000 }).catch((e) => e)
  assert.ok(Number(r.stdout.trim()) >= 900, r.stdout + r.stderr)
  assert.equal((await sbx.files.read('/etc/hostname')).trim(), sbx.sandboxId)
})

test('a reader that never reads does not stall the process', async (t) => {
  const sbx = await box(t)
  const net = await import('node:net')
  const url = new URL(sdk.sandboxUrl)
  const json = Buffer.from(JSON.stringify({ process: { cmd: '/bin/bash', args: ['-c', 'head -c 50000000 /dev/zero; touch /tmp/wrote-all'] }, stdin: false }))
  const head = Buffer.alloc(5)
  head.writeUInt32BE(json.length, 1)
  const s = net.connect(Number(url.port), url.hostname)
  s.pause()
  s.write(
    `POST /process.Process/Start HTTP/1.1\r\nHost: x\r\ncontent-type: application/connect+json\r\ncontent-length: ${json.length + 5}\r\nconnect-protocol-version: 1\r\n` +
      `e2b-sandbox-id: ${sbx.sandboxId}\r\ne2b-sandbox-port: 49983\r\nx-access-token: ${sbx.envdAccessToken}\r\n\r\n`
  )
  s.write(Buffer.concat([head, json]))
  await until('the process wrote everything', () => sbx.files.exists('/tmp/wrote-all'), { timeoutMs: 30_000, everyMs: 200 })
  s.destroy()
})

test('CPU spin on all threads: the neighbour still answers', async (t) => {
  const [hog, neighbour] = [await box(t), await box(t)]
  await hog.commands.run('for i in 1 2 3 4; do (while :; do :; done) & done; sleep 0.2', { background: true, timeoutMs: 0 })
  await sleep(300)
  const times = []
  for (let i = 0; i < 10; i++) {
    const t0 = performance.now()
    await neighbour.commands.run('true')
    times.push(performance.now() - t0)
  }
  times.sort((a, b) => a - b)
  assert.ok(times[5] < 1000, `median ${times[5]} ms`)
})
