// The network without its daemon: policies stay, traffic goes on; netd can die too; nothing is left at the end.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { after, afterEach, test } from 'node:test'
import { Sandbox } from 'e2b'
import { Daemon } from './lib/daemon.mjs'
import { netbox, probe, tcp, resolve, get } from './lib/net.mjs'
import { forget, seen } from './lib/internet.mjs'
import { until } from './lib/http.mjs'
import path from 'node:path'

const ALL = ['0.0.0.0/0', '::/0']
const daemon = new Daemon({ data: process.env.HF_E2E_DATA })
const tag = path.basename(daemon.runDir)
const sh = (...args) => execFileSync(args[0], args.slice(1), { stdio: ['ignore', 'pipe', 'pipe'] }).toString()
const source = readFileSync(new URL('./lib/netbox.py', import.meta.url), 'utf8')

async function start() {
  await daemon.start()
  return daemon.sdk()
}

async function make(sdk, opts) {
  const sbx = await Sandbox.create('base', { ...sdk, timeoutMs: 300_000, ...opts })
  await sbx.files.write('/tmp/netbox.py', source)
  return sbx
}

// A test that failed half-way leaves a daemon and sandboxes; the next one, and the end, want neither.
afterEach(() => daemon.finish(), { timeout: 60_000 })
after(() => daemon.child?.kill('SIGKILL'))

const netdPid = () => Number(JSON.parse(sh('curl', '-s', '--unix-socket', `${daemon.runDir}/net/netd.sock`, 'http://x/status')).pid)

test('the daemon is killed: policies hold, names are answered, open flows go on; the next one takes over', async () => {
  const sdk = await start()
  const sbx = await make(sdk, { network: { denyOut: ALL, allowOut: ['allowed.example', '198.51.100.20'] } })
  // A program in the box writes down what it finds every 200 ms, without anybody outside.
  await sbx.files.write('/tmp/watch.py', `import json, subprocess, time
while True:
    out = subprocess.run(['python3', '/tmp/netbox.py', json.dumps([{'op': 'http', 'url': 'http://allowed.example/'}, {'op': 'tcp', 'host': '198.51.100.30', 'port': 7, 'read': 0}, {'op': 'resolve', 'name': 'evil.example'}])], capture_output=True, text=True).stdout
    r = json.loads(out)
    open('/tmp/watch.log', 'a').write(json.dumps([r[0]['status'] if isinstance(r[0], dict) else r[0], r[1], r[2]]) + '\\n')
`)
  await sbx.commands.run('python3 /tmp/watch.py', { background: true, timeoutMs: 0 })
  const running = sbx.commands.run(`python3 /tmp/netbox.py '${JSON.stringify([{ op: 'flow', host: '198.51.100.20', port: 7, seconds: 6 }])}' > /tmp/flow.json`, { background: true, timeoutMs: 0 })
  await running
  await new Promise((r) => setTimeout(r, 500))
  const netd = netdPid()
  await daemon.kill9()
  await forget()
  await new Promise((r) => setTimeout(r, 3000))
  assert.equal(netdPid(), netd, 'netd lives on')
  assert.ok((await seen()).http.length > 2, 'traffic went on while there was no daemon')
  await daemon.start()
  assert.equal(netdPid(), netd)
  const again = await Sandbox.connect(sbx.sandboxId, sdk)
  const log = (await again.files.read('/tmp/watch.log')).trim().split('\n').map((l) => JSON.parse(l))
  assert.ok(log.length > 5)
  for (const [web, other, name] of log) {
    assert.equal(web, 200)
    assert.match(other, /refused|prohibited|unreachable/)
    assert.equal(name, 'again')
  }
  const flow = await until('the flow ends', async () => {
    const text = await again.files.read('/tmp/flow.json')
    return text && JSON.parse(text)[0]
  }, { timeoutMs: 10_000 })
  assert.equal(flow.end, 'alive')
  await again.updateNetwork({ denyOut: ALL, allowOut: ['198.51.100.30'] })
  assert.deepEqual(await probe(again, tcp('198.51.100.30', 7), tcp('198.51.100.20', 7)), ['open:x', 'refused'])
  await daemon.finish()
})

test('netd is killed: the kernel’s policy stays closed, a new netd gets everything again', async () => {
  const sdk = await start()
  const sbx = await make(sdk, { network: { denyOut: ALL, allowOut: ['allowed.example', '198.51.100.20'] } })
  const old = netdPid()
  process.kill(old, 'SIGKILL')
  assert.equal((await probe(sbx, tcp('198.51.100.30', 7)))[0].startsWith('open'), false)
  assert.equal((await probe(sbx, tcp('198.51.100.20', 7)))[0], 'open:x')
  await until('a new netd serves', () => netdPid() !== old, { timeoutMs: 10_000 }).catch(() => undefined)
  await until('names work again', async () => (await probe(sbx, get('http://allowed.example/')))[0].status === 200, { timeoutMs: 10_000, everyMs: 200 })
  const next = await make(sdk, { network: { denyOut: ALL, allowOut: ['198.51.100.30'] } })
  assert.deepEqual(await probe(next, tcp('198.51.100.30', 7), tcp('198.51.100.20', 7)), ['open:x', 'refused'])
  await daemon.finish()
})

test('200 sandboxes with different policies at once, each its own; then nothing is left of the fabric', { timeout: 300_000 }, async () => {
  const sdk = await start()
  const all = []
  for (let i = 0; i < 200; i += 10)
    all.push(...(await Promise.all(Array.from({ length: 10 }, (_, k) => Sandbox.create('base', { ...sdk, timeoutMs: 300_000, network: { denyOut: ALL, allowOut: [`198.51.100.${100 + ((i + k) % 40)}`, `203.0.113.${i + k}/32`] } })))))
  for (const n of [0, 63, 127, 199]) {
    const mine = `198.51.100.${100 + (n % 40)}`
    const other = `198.51.100.${100 + ((n + 1) % 40)}`
    const r = await all[n].commands.run(`for a in ${mine} ${other}; do curl -s -m 4 -o /dev/null http://$a/ && echo open || echo shut; done`)
    assert.equal(r.stdout, 'open\nshut\n', `sandbox ${n}`)
  }
  const links = sh('ip', '-n', `holdfast-${tag}`, '-br', 'link').split('\n').filter((l) => /^hf\d/.test(l)).length
  assert.ok(links >= 200, `interfaces: ${links}`)
  await daemon.finish()
  await until('the fabric is gone', () => !existsSync(`/run/netns/holdfast-${tag}`), { timeoutMs: 10_000 })
  assert.equal(sh('ip', '-br', 'link').includes(`hf-${tag}`), false)
  assert.equal(sh('nft', 'list', 'tables').includes('holdfast'), false)
})
