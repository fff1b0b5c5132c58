// Sessions: /v1/sessions, and what they promise to an SDK that works in their sandboxes.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sandbox } from 'e2b'
import { api, otherSdk, sdk } from './lib/suite.mjs'

const unique = () => Math.random().toString(36).slice(2, 12)

function setup(t) {
  const client = api()
  const key = `e2e:${unique()}:1`
  const opened = new Set()
  t.after(async () => {
    for (const id of opened) await client.json('DELETE', `/v1/sessions/${id}`)
    client.close()
  })
  const open = async (extra = {}, c = client) => {
    const answer = await c.call('POST', '/v1/sessions', { key, ...extra })
    opened.add(answer.session.id)
    return answer
  }
  return { client, key, open }
}

test('open is get-or-create; the workspace outlives the sandbox', async (t) => {
  const { client, key, open } = setup(t)
  const first = await open()
  assert.equal(first.session.key, key)
  const again = await open()
  assert.equal(again.session.id, first.session.id)
  assert.equal(again.sandbox.id, first.sandbox.id)
  const sbx = await Sandbox.connect(first.sandbox.id, sdk)
  await sbx.files.write('/workspace/kept.txt', 'kept')
  assert.equal((await sbx.commands.run('stat -c %U /workspace')).stdout.trim(), 'user')
  await sbx.kill()
  const next = await open()
  assert.equal(next.session.id, first.session.id)
  assert.notEqual(next.sandbox.id, first.sandbox.id)
  const sbx2 = await Sandbox.connect(next.sandbox.id, sdk)
  assert.equal(await sbx2.files.read('/workspace/kept.txt'), 'kept')
  const got = await client.call('GET', `/v1/sessions/${first.session.id}`)
  assert.equal((got.session ?? got).key, key)
})

test('50 callers race for one key: one session, one sandbox', { timeout: 120_000 }, async (t) => {
  const { client, open } = setup(t)
  const answers = await Promise.all(Array.from({ length: 50 }, () => open()))
  assert.equal(new Set(answers.map((a) => a.session.id)).size, 1)
  assert.equal(new Set(answers.map((a) => a.sandbox.id)).size, 1)
  const sandboxes = (await client.call('GET', '/v2/sandboxes?limit=100')).filter((s) => Object.values(s.metadata ?? {}).includes(answers[0].session.id))
  assert.ok(sandboxes.length <= 1, JSON.stringify(sandboxes))
})

test('callers race while the sandbox is being killed: one living sandbox at the end', { timeout: 120_000 }, async (t) => {
  const { open } = setup(t)
  for (let round = 0; round < 5; round++) {
    const { sandbox } = await open()
    const [, ...answers] = await Promise.all([Sandbox.kill(sandbox.id, sdk), ...Array.from({ length: 8 }, () => open().catch((e) => e))])
    const last = await open()
    const sbx = await Sandbox.connect(last.sandbox.id, sdk)
    assert.equal((await sbx.commands.run('echo ok')).stdout, 'ok\n')
    for (const a of answers) if (!(a instanceof Error)) assert.ok([sandbox.id, last.sandbox.id].includes(a.sandbox.id), 'a third sandbox')
  }
})

test('a paused sandbox is its session’s still: opened, it goes on, however many ask', { timeout: 60_000 }, async (t) => {
  const { client, open } = setup(t)
  const { sandbox } = await open()
  let sbx = await Sandbox.connect(sandbox.id, sdk)
  const { pid } = await sbx.commands.run('while :; do date +%s%N > /workspace/n.new; mv /workspace/n.new /workspace/n; sleep 0.02; done', { background: true, timeoutMs: 0 })
  for (const depth of ['warm', 'cold']) {
    await client.call('POST', `/sandboxes/${sandbox.id}/pause`, { depth })
    const answers = await Promise.all(Array.from({ length: 10 }, () => open({ timeout: 120 })))
    assert.deepEqual([...new Set(answers.map((a) => a.sandbox.id))], [sandbox.id])
    assert.equal(answers[0].sandbox.state, 'running')
    sbx = await Sandbox.connect(sandbox.id, sdk)
    const counts = (await sbx.commands.run('cat /workspace/n; sleep 0.3; cat /workspace/n')).stdout.trim().split('\n')
    assert.notEqual(counts[0], counts[1], `it stands still after a ${depth} pause`)
    assert.ok((await sbx.commands.list()).some((p) => p.pid === pid))
  }
  await client.call('POST', `/sandboxes/${sandbox.id}/pause`, { depth: 'cold' })
  const [, raced] = await Promise.all([Sandbox.kill(sandbox.id, sdk), open()])
  const last = await open()
  assert.ok([sandbox.id, last.sandbox.id].includes(raced.sandbox.id))
  assert.equal((await (await Sandbox.connect(last.sandbox.id, sdk)).commands.run('test -s /workspace/n && echo ok')).stdout, 'ok\n')
})

test('close ends the sandbox and keeps the workspace; delete removes it', async (t) => {
  const { client, key, open } = setup(t)
  const first = await open()
  const sbx = await Sandbox.connect(first.sandbox.id, sdk)
  await sbx.files.write('/workspace/x', '1')
  await client.call('POST', `/v1/sessions/${first.session.id}/close`)
  assert.equal(await sbx.isRunning(), false)
  const second = await open()
  const sbx2 = await Sandbox.connect(second.sandbox.id, sdk)
  assert.equal(await sbx2.files.read('/workspace/x'), '1')
  await client.call('DELETE', `/v1/sessions/${first.session.id}`)
  assert.equal(await sbx2.isRunning(), false)
  assert.equal((await client.json('GET', `/v1/sessions/${first.session.id}`)).status, 404)
  const fresh = await open()
  assert.equal(fresh.session.key, key)
  const sbx3 = await Sandbox.connect(fresh.sandbox.id, sdk)
  assert.equal(await sbx3.files.exists('/workspace/x'), false)
})

test('list, and tenants do not see each other', async (t) => {
  const { client, key, open } = setup(t)
  const mine = await open()
  const other = api(otherSdk.apiKey)
  t.after(() => other.close())
  const list = async (c) => {
    const r = await c.call('GET', '/v1/sessions?limit=100')
    return (r.sessions ?? r).map((s) => s.key)
  }
  assert.ok((await list(client)).includes(key))
  assert.ok(!(await list(other)).includes(key))
  assert.equal((await other.json('GET', `/v1/sessions/${mine.session.id}`)).status, 404)
  assert.equal((await other.json('DELETE', `/v1/sessions/${mine.session.id}`)).status, 404)
  // The same key of another tenant is another session.
  const theirs = await other.call('POST', '/v1/sessions', { key })
  assert.notEqual(theirs.session.id, mine.session.id)
  await other.call('DELETE', `/v1/sessions/${theirs.session.id}`)
})

test('bad keys are refused', async (t) => {
  const { client } = setup(t)
  for (const key of ['', 'only-one', 'a:b', 'a:b:c:d', ':b:c', 'a b:c:d\n', 'x'.repeat(1000) + ':b:c', 7, null]) {
    const r = await client.json('POST', '/v1/sessions', { key })
    assert.ok([400, 422].includes(r.status), `${JSON.stringify(key)?.slice(0, 40)}: ${r.status}`)
    assert.ok(r.json.message.length > 5)
  }
})

test('Idempotency-Key: the same answer again', async (t) => {
  const { client, key, open } = setup(t)
  await open()
  const headers = { 'idempotency-key': unique() }
  const a = await client.json('POST', '/v1/sessions', { key }, { headers })
  const b = await client.json('POST', '/v1/sessions', { key }, { headers })
  assert.deepEqual([a.status, a.json], [b.status, b.json])
  const c = await client.json('POST', '/v1/sessions', { key: `${key}x` }, { headers })
  assert.ok([409, 422].includes(c.status), `another body under the same Idempotency-Key: ${c.status}`)
})
