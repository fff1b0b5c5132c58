// Secrets through the published SDK: shapes, versions, pages, and a value that never comes back.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Secret } from 'e2b'
import { api, otherSdk, rejects, sdk } from './lib/suite.mjs'

const unique = (prefix) => `${prefix}-${Math.random().toString(36).slice(2, 10)}`

async function all(paginator) {
  const items = []
  while (paginator.hasNext) items.push(...(await paginator.nextItems()))
  return items
}

async function make(t, name, value, opts = {}) {
  const made = await Secret.create(name, value, { ...sdk, ...opts })
  t.after(() => Secret.destroy(name, sdk).catch(() => {}))
  return made
}

test('create, update, info, list, destroy', async (t) => {
  const name = unique('Key')
  const made = await make(t, name, 'first', { metadata: { owner: 'alice' } })
  assert.match(made.secretId, /^sec_[a-z0-9]{20}$/)
  assert.equal(made.name, name.toLowerCase())
  assert.equal(made.version, 1)
  assert.deepEqual(made.metadata, { owner: 'alice' })
  const next = await Secret.update(name, 'second', sdk)
  assert.equal(next.version, 2)
  assert.equal(next.secretId, made.secretId)
  assert.deepEqual(next.metadata, { owner: 'alice' })
  assert.ok(next.updatedAt >= made.createdAt)
  const byId = await Secret.getInfo(made.secretId, sdk)
  assert.equal(byId.version, 2)
  assert.ok((await all(Secret.list(sdk))).some((s) => s.secretId === made.secretId))
  assert.equal(await Secret.exists(name, sdk), true)
  assert.equal(await Secret.destroy(name, sdk), true)
  assert.equal(await Secret.destroy(name, sdk), false)
  assert.equal(await Secret.exists(name, sdk), false)
  await rejects(Secret.update(name, 'x', sdk), 'SecretNotFoundError')
})

test('another tenant sees none of it', async (t) => {
  const name = unique('mine')
  const made = await make(t, name, 'value')
  assert.equal(await Secret.exists(made.secretId, otherSdk), false)
  assert.equal(await Secret.exists(name, otherSdk), false)
  assert.equal((await all(Secret.list(otherSdk))).filter((s) => s.name === name).length, 0)
})

test('names are checked, twice is a conflict, pages are whole', async (t) => {
  await rejects(Secret.create('sec_x', 'v', sdk), 'SecretError', /reserved/)
  await rejects(Secret.create('a b', 'v', sdk), 'SecretError', /letters/)
  const names = [unique('p1'), unique('p2'), unique('p3')].sort()
  for (const name of names) await make(t, name, 'v')
  await rejects(Secret.create(names[0], 'v', sdk), 'SecretError', /exists/)
  const got = (await all(Secret.list({ ...sdk, limit: 1 }))).map((s) => s.name)
  assert.deepEqual(got.filter((n) => names.includes(n)), names)
})

test('no answer and no event holds the value', async (t) => {
  const value = unique('very-secret-value')
  const name = unique('quiet')
  await make(t, name, value)
  await Secret.update(name, value, sdk)
  for (const path of ['/secrets', `/secrets/${name}`, '/v1/events']) {
    const r = await api().call('GET', path)
    assert.ok(!JSON.stringify(r).includes(value), path)
  }
})
