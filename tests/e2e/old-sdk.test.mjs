// The SDK generation before (2.45: v1 paths, `secure`, always a timeout): a smoke test of everything it sends differently.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { Sandbox } from 'e2b-old'
import { sdk, rejects } from './lib/suite.mjs'
import { until } from './lib/http.mjs'

describe('SDK 2.45', () => {
  let sbx
  before(async () => {
    sbx = await Sandbox.create('base', { ...sdk, timeoutMs: 120_000, metadata: { gen: 'old' }, envs: { A: 'b' } })
  })
  after(() => sbx?.kill())

  test('commands', async () => {
    assert.equal((await sbx.commands.run('echo $A; whoami')).stdout, 'b\nuser\n')
    const e = await rejects(sbx.commands.run('exit 4'), 'CommandExitError')
    assert.equal(e.exitCode, 4)
    const h = await sbx.commands.run('cat', { background: true, stdin: true })
    await sbx.commands.sendStdin(h.pid, 'hi\n')
    await until('echo', () => h.stdout === 'hi\n')
    assert.equal(await h.kill(), true)
  })

  test('files', async () => {
    await sbx.files.write('a/b.txt', 'old')
    assert.equal(await sbx.files.read('a/b.txt'), 'old')
    assert.deepEqual((await sbx.files.list('a')).map((e) => e.name), ['b.txt'])
    const events = []
    const w = await sbx.files.watchDir('a', (e) => void events.push(e))
    await sbx.files.write('a/c.txt', '')
    await until('an event', () => events.some((e) => e.name === 'c.txt'))
    await w.stop()
    await sbx.files.remove('a')
  })

  test('pty', async () => {
    let screen = ''
    const p = await sbx.pty.create({ cols: 80, rows: 24, onData: (d) => void (screen += Buffer.from(d).toString()) })
    await sbx.pty.sendInput(p.pid, Buffer.from('echo $((6*7))\n'))
    await until('answer', () => screen.includes('42'))
    await sbx.pty.kill(p.pid)
  })

  test('control plane', async () => {
    assert.deepEqual((await sbx.getInfo()).metadata, { gen: 'old' })
    const again = await Sandbox.connect(sbx.sandboxId, sdk)
    assert.equal(again.sandboxId, sbx.sandboxId)
    await sbx.setTimeout(60_000)
    const list = await Sandbox.list({ ...sdk, query: { metadata: { gen: 'old' } } }).nextItems()
    assert.ok(list.some((s) => s.sandboxId === sbx.sandboxId))
    assert.equal(await sbx.isRunning(), true)
  })

  test('insecure sandboxes of old apps work without a token', async () => {
    const open = await Sandbox.create('base', { ...sdk, secure: false })
    assert.equal((await open.commands.run('echo ok')).stdout, 'ok\n')
    assert.equal(await open.kill(), true)
    assert.equal(await open.isRunning(), false)
  })
})
