// What a restore renews: twenty clones of one moment are twenty, for programs that were running then.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sandbox } from 'e2b'
import { api, box, sdk } from './lib/suite.mjs'
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
      return (await c.commands.run('cat /tmp/py; echo; cat /proc/sys/kernel/hostname /etc/machine-id /run/holdfast/generation')).stdout.split(/\s+/)
    })
  )
  for (const [i, what] of ['random.random()', 'RAND_bytes of OpenSSL', 'uuid4', 'host name', 'machine-id'].entries())
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
  await client.json('POST', `/sandboxes/${sbx.sandboxId}/pause`, { depth: 'cold' })
  const again = await Sandbox.connect(sbx.sandboxId, sdk)
  const inside = Number((await again.commands.run('date +%s%3N')).stdout)
  assert.ok(Math.abs(inside - Date.now()) < 5_000)
  assert.equal((await again.commands.run('cat /run/holdfast/generation')).stdout, '2\n')
  const { events } = (await client.json('GET', `/v1/events?sandbox=${sbx.sandboxId}`)).json
  assert.ok(events.some((e) => e.kind === 'sandbox.restored'))
  assert.equal((await again.commands.run('echo $LD_PRELOAD')).stdout.trim(), '/run/holdfast/reseed.so')
  assert.equal((await again.commands.run('echo ok', { envs: { LD_PRELOAD: '' } })).stdout, 'ok\n')
})
