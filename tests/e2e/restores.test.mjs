// What a restore renews: twenty clones of one moment are twenty, for programs that were running then.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sandbox } from 'e2b'
import { api, box, dataPlane, sdk } from './lib/suite.mjs'
import { until } from './lib/http.mjs'

// Waits for a line, and answers with what its generators give: python's random, OpenSSL below ssl and hashlib, urandom.
const PY = `
import random, ssl, os, sys, uuid
random.seed(1); random.random(); ssl.RAND_bytes(16)
open('/tmp/ready', 'w').close()
while True:
    while not os.path.exists('/tmp/go'): pass
    with open('/tmp/py.new', 'w') as f: f.write(f'{random.random()} {ssl.RAND_bytes(8).hex()} {uuid.uuid4()}')
    os.rename('/tmp/py.new', '/tmp/py'); break
import time; time.sleep(1000)
`
const distinct = (values, what) => assert.equal(new Set(values).size, values.length, `${what}: ${values.join(' ')}`)

test('twenty forks: their generators differ, and so do their names', { timeout: 120_000 }, async (t) => {
  const sbx = await box(t, { timeoutMs: 600_000 })
  await sbx.files.write('/tmp/r.py', PY)
  ;(await sbx.commands.run('exec python3 /tmp/r.py', { background: true, timeoutMs: 0 })).wait().catch(() => {})
  await until('it waits', async () => (await sbx.commands.run('test -e /tmp/ready && echo yes || true')).stdout !== '')
  const first = (await sbx.commands.run('cat /etc/machine-id /proc/sys/kernel/hostname')).stdout
  const children = await sbx.fork({ count: 20, timeoutMs: 300_000 })
  t.after(() => Promise.all(children.map((c) => c.kill?.())))
  const all = await Promise.all(
    children.map(async (c) => {
      assert.ok(!(c instanceof Error), String(c))
      await c.files.write('/tmp/go', '')
      await until('it answered', async () => (await c.commands.run('test -e /tmp/py && echo yes || true')).stdout === 'yes\n')
      return (await c.commands.run('cat /tmp/py; echo; cat /proc/sys/kernel/hostname /etc/machine-id /proc/sys/kernel/random/boot_id /run/holdfast/generation')).stdout.split(/\s+/)
    })
  )
  for (const [i, what] of ['random.random()', 'RAND_bytes of OpenSSL', 'uuid4', 'host name', 'machine-id', 'boot id'].entries())
    distinct(all.map((a) => a[i]), what)
  assert.ok(all.every((a) => !first.includes(a[3]) && !first.includes(a[4])))
})

test('without the library they would be the same: what is not covered', { timeout: 60_000 }, async (t) => {
  const sbx = await box(t, { timeoutMs: 600_000 })
  await sbx.files.write('/tmp/r.py', PY)
  ;(await sbx.commands.run('exec python3 /tmp/r.py', { background: true, timeoutMs: 0, envs: { LD_PRELOAD: '' } })).wait().catch(() => {})
  await until('it waits', async () => (await sbx.commands.run('test -e /tmp/ready && echo yes || true')).stdout !== '')
  const children = await sbx.fork({ count: 2, timeoutMs: 300_000 })
  t.after(() => Promise.all(children.map((c) => c.kill?.())))
  const all = []
  for (const c of children) {
    await c.files.write('/tmp/go', '')
    await until('it answered', async () => (await c.commands.run('test -e /tmp/py && echo yes || true')).stdout === 'yes\n')
    all.push((await c.commands.run('cat /tmp/py')).stdout.split(' '))
  }
  assert.equal(all[0][0], all[1][0], 'random.random() without the library')
  assert.equal(all[0][1], all[1][1], 'RAND_bytes without the library')
  assert.notEqual(all[0][2], all[1][2], 'uuid4 comes from the kernel')
})

test('node: crypto.randomBytes of clones differ', { timeout: 120_000 }, async (t) => {
  const sbx = await box(t, { timeoutMs: 600_000 })
  if ((await sbx.commands.run('command -v node >/dev/null || echo no')).stdout.trim() === 'no') {
    t.skip('the base template has no node')
    return
  }
  await sbx.files.write('/tmp/r.cjs', `
const c = require('crypto'), fs = require('fs'); c.randomBytes(16)
fs.writeFileSync('/tmp/ready', '')
const timer = setInterval(() => { if (!fs.existsSync('/tmp/go')) return; clearInterval(timer); fs.writeFileSync('/tmp/js.new', c.randomBytes(8).toString('hex')); fs.renameSync('/tmp/js.new', '/tmp/js'); setInterval(() => {}, 1000) }, 5)`)
  ;(await sbx.commands.run('exec node /tmp/r.cjs', { background: true, timeoutMs: 0 })).wait().catch(() => {})
  await until('it waits', async () => (await sbx.commands.run('test -e /tmp/ready && echo yes || true')).stdout !== '')
  const children = await sbx.fork({ count: 20, timeoutMs: 300_000 })
  t.after(() => Promise.all(children.map((c) => c.kill?.())))
  const all = await Promise.all(
    children.map(async (c) => {
      await c.files.write('/tmp/go', '')
      await until('it answered', async () => (await c.commands.run('test -e /tmp/js && echo yes || true')).stdout === 'yes\n')
      return (await c.commands.run('cat /tmp/js')).stdout
    })
  )
  distinct(all, 'crypto.randomBytes')
})

test('the same sandbox after a pause: clock right, generators go on, generation told', async (t) => {
  const sbx = await box(t, { timeoutMs: 120_000 })
  const client = api()
  t.after(() => client.close())
  const bootId = async (b) => (await b.commands.run('cat /proc/sys/kernel/random/boot_id')).stdout
  const booted = await bootId(sbx)
  assert.match(booted, /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\n$/)
  await client.json('POST', `/sandboxes/${sbx.sandboxId}/pause`, { depth: 'cold' })
  const again = await Sandbox.connect(sbx.sandboxId, sdk)
  const inside = Number((await again.commands.run('date +%s%3N')).stdout)
  assert.ok(Math.abs(inside - Date.now()) < 5_000)
  assert.equal((await again.commands.run('cat /run/holdfast/generation')).stdout, '2\n')
  assert.equal(await bootId(again), booted, 'its processes did not boot')
  const { events } = (await client.json('GET', `/v1/events?sandbox=${sbx.sandboxId}`)).json
  assert.ok(events.some((e) => e.kind === 'sandbox.restored' && e.detail === 'generation 2'))
  assert.equal((await again.commands.run('echo $LD_PRELOAD')).stdout.trim(), '/run/holdfast/reseed.so')
  assert.equal((await again.commands.run('echo ok', { envs: { LD_PRELOAD: '' } })).stdout, 'ok\n')
})

// The main thread waits for the others, as that of many servers does.
const THREADS = `
import random, threading, time
random.seed(1); old = random.getstate()
def work():
    open('/tmp/ready', 'w').close()
    while random.getstate() == old: time.sleep(0.01)
    with open('/tmp/t.new', 'w') as f: f.write(str(random.random()))
    import os; os.rename('/tmp/t.new', '/tmp/thread')
    time.sleep(1000)
t = threading.Thread(target=work); t.start(); t.join()
`
test('python with threads: its random is seeded anew while the main thread waits', { timeout: 60_000 }, async (t) => {
  const sbx = await box(t, { timeoutMs: 300_000 })
  await sbx.files.write('/tmp/t.py', THREADS)
  ;(await sbx.commands.run('exec python3 /tmp/t.py', { background: true, timeoutMs: 0 })).wait().catch(() => {})
  await until('it is ready', async () => await sbx.files.exists('/tmp/ready'))
  const children = await sbx.fork({ count: 4, timeoutMs: 300_000 })
  t.after(() => Promise.all(children.map((c) => c.kill?.())))
  const all = await Promise.all(
    children.map(async (c) => {
      await until('it was seeded', async () => await c.files.exists('/tmp/thread'))
      return await c.files.read('/tmp/thread')
    })
  )
  distinct(all, 'random.random() of a thread')
  assert.equal(await sbx.files.exists('/tmp/thread'), false, 'the parent goes on with its series')
})

async function pauseAs(sbx, body) {
  const client = api()
  assert.equal((await client.json('POST', `/sandboxes/${sbx.sandboxId}/pause`, body)).status, 204)
  client.close()
}
const later = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

for (const depth of ['warm', 'cold'])
  test(`${depth}: a command’s deadline does not run while it is paused`, { timeout: 60_000 }, async (t) => {
    const sbx = await box(t, { timeoutMs: 120_000 })
    const script = 'n=0; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo whole; exit 3'
    const cmd = await sbx.commands.run(script, { background: true, timeoutMs: 4_000 })
    await pauseAs(sbx, { depth })
    await later(6_000)
    const again = await Sandbox.connect(sbx.sandboxId, sdk)
    const back = await again.commands.connect(cmd.pid)
    await again.files.write('/tmp/go', '')
    const end = await back.wait().then((r) => r, (e) => e)
    assert.deepEqual([end.exitCode, end.stdout], [3, 'whole\n'])
  })

test('a deadline is still one after a resume', { timeout: 60_000 }, async (t) => {
  const sbx = await box(t, { timeoutMs: 120_000 })
  const cmd = await sbx.commands.run('sleep 1000', { background: true, timeoutMs: 3_000 })
  await pauseAs(sbx, { depth: 'cold' })
  await Sandbox.connect(sbx.sandboxId, sdk)
  const envd = dataPlane(sbx, 49983)
  t.after(() => envd.close())
  await until('it was ended', async () => (await envd.json('GET', `/holdfast/exec/${cmd.pid}`)).json.timed_out)
})

test('an exec is found by its id after ten pauses, its output whole from every cursor', { timeout: 120_000 }, async (t) => {
  const sbx = await box(t, { timeoutMs: 300_000, envs: { COLOUR: 'green' } })
  const script = 'i=0; while [ ! -e /tmp/end ]; do i=$((i+1)); echo line $i; sleep 0.02; done; exit 9'
  const cmd = await sbx.commands.run(script, { background: true, timeoutMs: 0 })
  const envd = dataPlane(sbx, 49983)
  t.after(() => envd.close())
  const exec = async (which) => (await envd.json('GET', `/holdfast/exec/${which}`)).json
  const { exec_id: id } = await exec(cmd.pid)
  assert.match(id, /^x[a-z0-9]{20}$/)
  let seen = ''
  for (let i = 0; i < 10; i++) {
    await pauseAs(sbx, { depth: 'cold' })
    await Sandbox.connect(sbx.sandboxId, sdk)
    assert.deepEqual([(await exec(id)).pid, (await exec(id)).running], [cmd.pid, true])
    const all = (await envd.request('GET', `/holdfast/exec/${id}/stdout?from=0`)).body.toString()
    assert.ok(all.startsWith(seen), 'what was there is there')
    const rest = (await envd.request('GET', `/holdfast/exec/${id}/stdout?from=${seen.length}`)).body.toString()
    assert.ok(rest.startsWith(all.slice(seen.length)))
    seen = all
  }
  assert.equal((await sbx.commands.run('echo $COLOUR')).stdout, 'green\n', 'the environment is kept, too')
  await sbx.files.write('/tmp/end', '')
  await until('it ended', async () => !(await exec(id)).running)
  const { exit_code, pid } = await exec(id)
  assert.deepEqual([exit_code, pid], [9, cmd.pid])
  const lines = (await envd.request('GET', `/holdfast/exec/${id}/stdout?from=0`)).body.toString().trimEnd().split('\n')
  assert.ok(lines.every((l, i) => l === `line ${i + 1}`), 'no line is lost and none twice')
})

// A listener and a connection out of the box's own; a pause keeps the first and ends the second at once.
const NET = `
import socket, os, time
s = socket.create_server(('127.0.0.1', 7070)); out = socket.create_connection(('127.0.0.1', 7070)); peer, _ = s.accept()
begin = time.monotonic(); wall = time.time(); open('/tmp/ready', 'w').close()
while not os.path.exists('/tmp/go'): time.sleep(0.01)
try: r = 'open' if out.recv(1) else 'closed'
except OSError as e: r = type(e).__name__
new = socket.create_connection(('127.0.0.1', 7070)); s.accept()[0].sendall(b'x')
with open('/tmp/n.new', 'w') as f: f.write(f"{r} {new.recv(1).decode()} {0 <= time.monotonic() - begin < time.time() - wall - 2}")
os.rename('/tmp/n.new', '/tmp/net')
`
test('listeners are kept, connections end at once, monotonic time goes on', { timeout: 60_000 }, async (t) => {
  const sbx = await box(t, { timeoutMs: 120_000 })
  await sbx.files.write('/tmp/n.py', NET)
  ;(await sbx.commands.run('exec python3 /tmp/n.py', { background: true, timeoutMs: 0 })).wait().catch(() => {})
  await until('it is ready', async () => await sbx.files.exists('/tmp/ready'))
  await pauseAs(sbx, { depth: 'cold' })
  await later(2_500) // the wall clock counts that, the monotonic one does not
  await Sandbox.connect(sbx.sandboxId, sdk)
  await sbx.files.write('/tmp/go', '')
  await until('it answered', async () => await sbx.files.exists('/tmp/net'))
  const [connection, listener, monotonic] = (await sbx.files.read('/tmp/net')).split(' ')
  assert.notEqual(connection, 'open')
  assert.deepEqual([listener, monotonic], ['x', 'True'])
})
