// The network helper hangs, or is of another version: the daemon gets itself a new one, and sandboxes notice nothing.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { test } from 'node:test'
import { Sandbox } from 'e2b'
import { Daemon } from './lib/daemon.mjs'
import { probe, get, tcp } from './lib/net.mjs'
import { until } from './lib/http.mjs'
import { readFileSync } from 'node:fs'

const ALL = ['0.0.0.0/0', '::/0']
const daemon = new Daemon({ data: process.env.HF_E2E_DATA })
const source = readFileSync(new URL('./lib/netbox.py', import.meta.url), 'utf8')
const ask = () => {
  try {
    const out = execFileSync('curl', ['-s', '-m', '1', '--unix-socket', `${daemon.runDir}/net/netd.sock`, 'http://x/status'])
    return JSON.parse(out.toString())
  } catch {
    return { pid: 0 } // it is not there, or it hangs
  }
}

async function make(sdk, network) {
  const sbx = await Sandbox.create('base', { ...sdk, timeoutMs: 300_000, network })
  await sbx.files.write('/tmp/netbox.py', source)
  return sbx
}

test('netd hangs: a create says 503 in time, the policy holds, a new netd comes', async () => {
  await daemon.start()
  const sdk = await daemon.sdk()
  const sbx = await make(sdk, { denyOut: ALL, allowOut: ['allowed.example', '198.51.100.20'] })
  const { pid } = ask()
  assert.ok(pid > 1)
  process.kill(pid, 'SIGSTOP')
  try {
    const begin = Date.now()
    await assert.rejects(Sandbox.create('base', { ...sdk, network: { allowOut: ['198.51.100.20'] } }), /503|helper/)
    assert.ok(Date.now() - begin < 4000, `took ${Date.now() - begin} ms`)
    assert.deepEqual(await probe(sbx, tcp('198.51.100.20'), tcp('198.51.100.30')), ['open', 'refused'])
    await until('a new netd serves', () => ![0, pid].includes(ask().pid), { timeoutMs: 40_000, everyMs: 300 })
  } finally {
    try {
      process.kill(pid, 'SIGKILL')
    } catch {
      // the daemon was first
    }
  }
  await until('names work', async () => (await probe(sbx, get('http://allowed.example/')))[0].status === 200, { timeoutMs: 10_000, everyMs: 300 })
  assert.equal(await sbx.kill(), true)
  await daemon.finish()
})
