// Policies, networks and records from the command line.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { test } from 'node:test'
import { HOLDFAST } from './lib/daemon.mjs'
import { sdk, url } from './lib/suite.mjs'
import { until } from './lib/http.mjs'

const env = { ...process.env, HOLDFAST_URL: url, HOLDFAST_API_KEY: sdk.apiKey, NO_COLOR: '1' }

function holdfast(args, input = '') {
  return new Promise((resolve) => {
    const child = execFile(HOLDFAST, args, { env, timeout: 60_000 }, (e, stdout, stderr) => resolve({ code: e ? (e.code ?? e.signal) : 0, stdout, stderr }))
    child.stdin.on('error', () => {})
    child.stdin.end(input)
  })
}

async function ok(args, input) {
  const r = await holdfast(args, input)
  assert.equal(r.code, 0, `holdfast ${args.join(' ')}: ${r.code}\n${r.stdout}${r.stderr}`)
  return r.stdout
}

const create = async (t, ...args) => {
  const id = (await ok(['sandbox', 'create', ...args])).trim()
  t.after(() => holdfast(['sandbox', 'kill', id]))
  return id
}
const curl = (id, target) => holdfast(['sandbox', 'exec', id, '--', 'curl', '-sS', '-m', '5', '-o', '/dev/null', '-w', '%{http_code}', target])

test('policy set, ls, show, test, rm', async (t) => {
  t.after(() => holdfast(['policy', 'rm', 'e2e-cli']))
  await ok(['policy', 'set', 'e2e-cli', '--allow', 'Allowed.example', '--allow', '198.51.100.20'])
  assert.match(await ok(['policy', 'ls']), /e2e-cli/)
  assert.match(await ok(['policy', 'ls', '--quiet']), /^e2e-cli$/m)
  assert.match(await ok(['policy', 'show', 'e2e-cli']), /Allowed +allowed\.example, 198\.51\.100\.20/)
  // What --json shows is what set takes.
  const doc = JSON.parse(await ok(['policy', 'show', 'e2e-cli', '--json']))
  doc.rules.push({ name: 'no-admin', host: 'allowed.example', path: '/admin/*', action: 'deny' })
  await ok(['policy', 'set', 'e2e-cli', '-'], JSON.stringify(doc))
  assert.match(await ok(['policy', 'show', 'e2e-cli']), /no-admin +deny +allowed\.example/)
  assert.match(await ok(['policy', 'test', 'e2e-cli', 'http://allowed.example/']), /^allow: allow_out allowed\.example/)
  const denied = await holdfast(['policy', 'test', 'e2e-cli', 'http://allowed.example/a/../admin/x', '--json'])
  assert.equal(denied.code, 1)
  assert.deepEqual([JSON.parse(denied.stdout).reason, JSON.parse(denied.stdout).rule], ['rule', 'e2e-cli/no-admin'])
  assert.equal((await holdfast(['policy', 'set', 'e2e-cli', '--deny', 'x.example'])).code, 1)
  assert.match((await holdfast(['policy', 'set', 'e2e-cli'])).stderr, /FILE/)
  assert.equal((await holdfast(['policy', 'test', 'http://x/'])).code, 2)
  assert.match((await holdfast(['policy', 'show', 'nobody'])).stderr, /policy ls/)
})

test('a sandbox bound to a policy: network, change, outbound', async (t) => {
  await ok(['policy', 'set', 'e2e-bound', '--allow', 'allowed.example'])
  const id = await create(t, '--policy', 'e2e-bound')
  t.after(() => holdfast(['policy', 'rm', 'e2e-bound']))
  assert.equal((await curl(id, 'http://allowed.example/')).stdout, '200')
  assert.notEqual((await curl(id, 'http://other.example/')).code, 0)
  assert.match((await holdfast(['policy', 'rm', 'e2e-bound'])).stderr, /bound to 1 sandbox/)
  const shown = await ok(['sandbox', 'network', id])
  assert.match(shown, /Everything else +denied/)
  assert.match(shown, /Policies +e2e-bound/)
  assert.match(shown, /Allowed +allowed\.example/)
  await ok(['policy', 'set', 'e2e-bound', '--allow', 'other.example'])
  assert.equal((await curl(id, 'http://other.example/')).stdout, '200')
  assert.notEqual((await curl(id, 'http://allowed.example/')).code, 0)
  await ok(['sandbox', 'network', id, '--internet', 'off', '--allow', 'allowed.example'])
  assert.equal((await curl(id, 'http://allowed.example/')).stdout, '200')
  assert.equal((await curl(id, 'http://other.example/')).stdout, '200') // the group stays
  assert.equal((await holdfast(['policy', 'test', '--sandbox', id, 'http://evil.example/'])).code, 1)
  await until('the records', async () => {
    const list = JSON.parse(await ok(['sandbox', 'outbound', id, '--json']))
    return list.some((r) => r.kind === 'request' && r.host === 'other.example') && list.some((r) => r.kind === 'denial' && r.name === 'allowed.example')
  })
  assert.match(await ok(['sandbox', 'outbound', id]), /request +allow +GET +other\.example/)
})

test('--no-internet, --allow-out, --deny-out', async (t) => {
  const id = await create(t, '--no-internet', '--allow-out', '198.51.100.20')
  assert.match(await ok(['sandbox', 'network', id]), /Allowed +198\.51\.100\.20/)
  const open = await create(t, '--deny-out', '198.51.100.20')
  assert.notEqual((await curl(open, 'http://198.51.100.20/')).code, 0)
  const bad = await holdfast(['sandbox', 'create', '--allow-out', 'allowed.example'])
  assert.equal(bad.code, 1)
  assert.match(bad.stderr, /--no-internet/)
  assert.equal((await holdfast(['sandbox', 'create', '--no-internet', '--allow-internet'])).code, 2)
  assert.match((await holdfast(['sandbox', 'network', id, '--internet', 'maybe'])).stderr, /on or off/)
})

test('a session keeps what it may reach', async (t) => {
  const key = 'e2e:net:cli'
  t.after(() => holdfast(['session', 'rm', key, '--yes']))
  const first = (await ok(['session', 'open', key, '--no-internet', '--allow-out', 'allowed.example', '--quiet'])).trim()
  assert.equal((await curl(first, 'http://allowed.example/')).stdout, '200')
  await ok(['sandbox', 'kill', first])
  const second = (await ok(['session', 'open', key, '--quiet'])).trim()
  assert.notEqual(second, first)
  assert.equal((await curl(second, 'http://allowed.example/')).stdout, '200')
  assert.notEqual((await curl(second, 'http://other.example/')).code, 0)
})

test('a rule that looks at nothing but the host: its TLS is trusted', async (t) => {
  await ok(['policy', 'set', 'e2e-plain', '-'], JSON.stringify({ rules: [{ host: 'api.model.example', name: 'all of it' }, { host: 'allowed.example', action: 'deny' }] }))
  const id = await create(t, '--policy', 'e2e-plain')
  t.after(() => holdfast(['policy', 'rm', 'e2e-plain']))
  assert.deepEqual(await curl(id, 'https://api.model.example/x'), { code: 0, stdout: '200', stderr: '' })
  assert.notEqual((await curl(id, 'https://allowed.example/')).code, 0)
})
