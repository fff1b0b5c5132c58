// Pause and resume through the published SDK: both depths, ten times, by timeout, by traffic, in a storm.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sandbox } from 'e2b'
import { api, box, dataPlane, otherSdk, rejects, sdk } from './lib/suite.mjs'
import { sleep, until } from './lib/http.mjs'

// A program that has something to lose: it counts, and tells over HTTP how far it is.
const COUNTER = `
import http.server, random, threading, time
n = 0
def count():
    global n
    while True:
        n += 1
        time.sleep(0.01)
threading.Thread(target=count, daemon=True).start()
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f'{n} {random.random()}'.encode()
        self.send_response(200); self.send_header('content-length', str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer.request_queue_size = 128
http.server.ThreadingHTTPServer(('127.0.0.1', 8000), H).serve_forever()
`
async function counting(t, opts) {
  const sbx = await box(t, opts)
  await sbx.files.write('/tmp/counter.py', COUNTER)
  const cmd = await sbx.commands.run('python3 /tmp/counter.py', { background: true, timeoutMs: 0 })
  await until('the counter serves', async () => (await read(sbx)) > 0)
  return { sbx, pid: cmd.pid }
}
async function read(sbx) {
  const client = dataPlane(sbx, 8000)
  try {
    const r = await client.request('GET', '/')
    return r.status === 200 ? Number(r.body.toString().split(' ')[0]) : -1
  } finally {
    client.close()
  }
}
async function pause(sbx, body) {
  const client = api()
  try {
    const r = await client.json('POST', `/sandboxes/${sbx.sandboxId}/pause`, body)
    assert.equal(r.status, 204, JSON.stringify(r.json))
  } finally {
    client.close()
  }
}
async function row(sbx) {
  const client = api()
  try {
    return (await client.json('GET', `/v1/sandboxes/${sbx.sandboxId}`)).json
  } finally {
    client.close()
  }
}

for (const depth of ['warm', 'cold'])
  test(`${depth}: memory, files, identity and metadata are kept; nothing answers meanwhile`, async (t) => {
    const { sbx, pid } = await counting(t, { metadata: { owner: 'alice' }, timeoutMs: 120_000 })
    const before = await read(sbx)
    await pause(sbx, { depth })
    assert.equal(await sbx.isRunning(), false)
    const info = await sbx.getInfo()
    assert.equal(info.state, 'paused')
    assert.deepEqual(info.metadata, { owner: 'alice' })
    assert.equal((await row(sbx)).pause, depth)
    const paused = await Sandbox.list({ ...sdk, query: { state: ['paused'], metadata: { owner: 'alice' } } }).nextItems()
    assert.ok(paused.some((s) => s.sandboxId === sbx.sandboxId))
    await sleep(300)
    const again = await Sandbox.connect(sbx.sandboxId, { ...sdk, timeoutMs: 60_000 })
    assert.equal(again.sandboxId, sbx.sandboxId)
    const after = await read(again)
    assert.ok(after >= before, `${before} then ${after}`)
    await until('the counter counts', async () => (await read(again)) > after)
    assert.ok((await again.commands.list()).some((p) => p.pid === pid))
    assert.equal((await again.getInfo()).state, 'running')
    const life = (await again.getInfo()).endAt.getTime() - Date.now()
    assert.ok(life > 50_000 && life < 61_000, `lives ${life} ms`)
  })

test('statuses are E2B’s', async (t) => {
  const sbx = await box(t)
  const client = api()
  t.after(() => client.close())
  const path = `/sandboxes/${sbx.sandboxId}`
  const running = await client.json('POST', `${path}/resume`, { timeout: 60 })
  assert.equal(running.status, 409)
  assert.equal(running.json.message, `Sandbox ${sbx.sandboxId} is already running`)
  assert.equal((await client.json('POST', `${path}/pause`, {})).status, 204)
  const twice = await client.json('POST', `${path}/pause`, {})
  assert.equal(twice.status, 409)
  assert.equal(twice.json.message, `Error pausing sandbox - sandbox '${sbx.sandboxId}' is already paused`)
  assert.equal((await client.json('POST', `${path}/timeout`, { timeout: 60 })).status, 409)
  assert.equal((await client.json('POST', `/v2${path}/connect`, { timeout: 60 })).status, 201)
  assert.equal((await client.json('POST', `/v2${path}/connect`, { timeout: 60 })).status, 200)
  assert.equal((await client.json('POST', '/sandboxes/i00000000000000000000/pause', {})).status, 404)
  assert.equal((await client.json('POST', `${path}/pause`, { memory: 'no' })).status, 400)
  const other = api(otherSdk.apiKey)
  t.after(() => other.close())
  assert.equal((await other.json('POST', `${path}/pause`, {})).status, 404)
})

test('the second and the tenth cold pause lose nothing that the first kept', { timeout: 120_000 }, async (t) => {
  const { sbx } = await counting(t, { timeoutMs: 300_000 })
  let last = 0
  for (let i = 1; i <= 10; i++) {
    await sbx.files.write(`/home/user/file-${i}`, `round ${i}`)
    const before = await read(sbx)
    assert.ok(before >= last, `round ${i}: ${last} then ${before}`)
    await pause(sbx, { depth: 'cold' })
    await Sandbox.connect(sbx.sandboxId, sdk)
    last = await read(sbx)
    assert.ok(last >= before, `round ${i}: ${before} then ${last}`)
    for (let k = 1; k <= i; k++) assert.equal(await sbx.files.read(`/home/user/file-${k}`), `round ${k}`)
  }
  assert.equal((await row(sbx)).generation, 11)
  assert.equal((await sbx.commands.run('cat /run/holdfast/generation')).stdout.trim(), '11')
})

test('a command that runs at the pause ends once, with its own status; output is whole', async (t) => {
  const sbx = await box(t, { timeoutMs: 120_000 })
  const cmd = await sbx.commands.run('for i in $(seq 1 40); do echo line $i; sleep 0.05; done; exit 7', { background: true, timeoutMs: 0 })
  await sleep(300)
  cmd.disconnect?.()
  await pause(sbx, { depth: 'cold' })
  await Sandbox.connect(sbx.sandboxId, sdk)
  const e = await (await sbx.commands.connect(cmd.pid)).wait().then(() => null, (err) => err)
  assert.equal(e?.exitCode, 7)
})

test('the disk only: files stay, processes end, the environment is there again', async (t) => {
  const sbx = await box(t, { envs: { COLOUR: 'green' }, timeoutMs: 120_000 })
  await sbx.files.write('/home/user/kept', 'yes')
  await sbx.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
  await pause(sbx, { memory: false })
  const back = await Sandbox.connect(sbx.sandboxId, sdk)
  assert.equal(await back.files.read('/home/user/kept'), 'yes')
  assert.equal((await back.commands.run('pgrep -x sleep || echo none')).stdout.trim(), 'none')
  assert.equal((await back.commands.run('echo $COLOUR')).stdout.trim(), 'green')
})

test('at the timeout: paused instead of killed, when asked', { timeout: 60_000 }, async (t) => {
  const client = api()
  t.after(() => client.close())
  const r = await client.json('POST', '/v2/sandboxes', { templateID: 'base', timeout: 2, autoPause: true })
  assert.equal(r.status, 201, JSON.stringify(r.json))
  const id = r.json.sandboxID
  t.after(() => client.json('DELETE', `/sandboxes/${id}`))
  const detail = (await client.json('GET', `/sandboxes/${id}`)).json
  assert.deepEqual(detail.lifecycle, { autoResume: false, onTimeout: 'pause' })
  await until('it is paused', async () => (await client.json('GET', `/sandboxes/${id}`)).json.state === 'paused', { timeoutMs: 20_000 })
  await sleep(2500) /* its time stands still */
  const sbx = await Sandbox.connect(id, { ...sdk, timeoutMs: 60_000 })
  assert.equal((await sbx.commands.run('echo back')).stdout, 'back\n')
})

test('traffic wakes it, once for fifty requests, and all of them are served', { timeout: 60_000 }, async (t) => {
  const client = api()
  t.after(() => client.close())
  const made = (await client.json('POST', '/v2/sandboxes', { templateID: 'base', timeout: 120, autoPause: true, autoResume: { enabled: true } })).json
  const sbx = await Sandbox.connect(made.sandboxID, sdk)
  t.after(() => sbx.kill())
  await sbx.files.write('/tmp/counter.py', COUNTER)
  await sbx.commands.run('python3 /tmp/counter.py', { background: true, timeoutMs: 0 })
  await until('the counter serves', async () => (await read(sbx)) > 0)
  await pause(sbx, { depth: 'cold' })
  // The SDK, whose stream was cut, asks whether it runs; that wakes nobody.
  assert.equal(await sbx.isRunning(), false)
  assert.equal((await row(sbx)).state, 'paused')
  const counts = await Promise.all(Array.from({ length: 50 }, () => read(sbx)))
  assert.ok(counts.every((n) => n > 0), counts.join(' '))
  assert.equal((await row(sbx)).generation, 2)
  assert.equal((await row(sbx)).cause, 'traffic')
})

test('a pause of the disk only is not undone by traffic; a question for its health is traffic later', { timeout: 60_000 }, async (t) => {
  const client = api()
  t.after(() => client.close())
  const make = async () => {
    const made = (await client.json('POST', '/v2/sandboxes', { templateID: 'base', timeout: 120, autoPause: true, autoResume: { enabled: true } })).json
    const sbx = await Sandbox.connect(made.sandboxID, sdk)
    t.after(() => sbx.kill())
    return sbx
  }
  const disk = await make()
  await pause(disk, { memory: false })
  assert.equal((await row(disk)).pause, 'disk')
  const other = await make()
  await pause(other)
  assert.equal(await other.isRunning(), false)
  await until('a question wakes it', () => other.isRunning(), { timeoutMs: 10_000 })
  assert.equal(await disk.isRunning(), false)
  assert.equal((await dataPlane(disk, 8000).request('GET', '/')).status, 502)
  assert.equal((await row(disk)).state, 'paused')
  await Sandbox.connect(disk.sandboxId, sdk)
  assert.equal(await disk.isRunning(), true)
})

for (const depth of ['warm', 'cold'])
  test(`connect with memory: false starts a ${depth} one afresh`, async (t) => {
    const client = api()
    t.after(() => client.close())
    const { sbx, pid } = await counting(t, { envs: { KEPT: 'yes' } })
    await sbx.files.write('/home/user/kept', 'kept')
    await pause(sbx, { depth })
    assert.equal((await client.json('POST', `/v2/sandboxes/${sbx.sandboxId}/connect`, { memory: 'no' })).status, 400)
    assert.equal((await client.json('POST', `/v2/sandboxes/${sbx.sandboxId}/connect`, { memory: false })).status, 201)
    assert.equal((await sbx.commands.run('echo $KEPT; cat kept')).stdout, 'yes\nkept')
    assert.ok(!(await sbx.commands.list()).some((p) => p.pid === pid))
    assert.equal((await row(sbx)).generation, 2)
  })

test('fifty resumes at once are one; without auto-resume traffic wakes nobody', { timeout: 60_000 }, async (t) => {
  const { sbx } = await counting(t, { timeoutMs: 120_000 })
  await pause(sbx, { depth: 'cold' })
  assert.equal(await read(sbx), -1)
  const all = await Promise.all(Array.from({ length: 50 }, () => Sandbox.connect(sbx.sandboxId, { ...sdk, timeoutMs: 60_000 })))
  assert.ok(all.every((s) => s.sandboxId === sbx.sandboxId))
  assert.equal((await row(sbx)).generation, 2)
  assert.ok((await read(sbx)) > 0)
})

test('a paused one is killed as it is: both depths, and in the middle', { timeout: 60_000 }, async (t) => {
  for (const depth of ['warm', 'cold']) {
    const sbx = await box(t)
    await pause(sbx, { depth })
    assert.equal(await sbx.kill(), true)
    await rejects(Sandbox.connect(sbx.sandboxId, sdk), 'SandboxNotFoundError')
  }
  const { sbx } = await counting(t)
  const pausing = pause(sbx, { depth: 'cold' }).then(() => 'paused', (e) => e.message)
  assert.equal(await sbx.kill(), true)
  await pausing
  await rejects(Sandbox.connect(sbx.sandboxId, sdk), 'SandboxNotFoundError')
})
