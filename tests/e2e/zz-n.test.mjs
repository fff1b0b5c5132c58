import { test } from 'node:test'
import { api } from './lib/suite.mjs'
test('time', async () => {
  const c = api()
  const one = async (on) => {
    const t = performance.now()
    const s = await c.call('POST', '/v2/sandboxes', { templateID: 'base', allow_internet_access: on })
    const d = performance.now() - t
    await c.call('DELETE', `/sandboxes/${s.sandboxID}`)
    await new Promise((r) => setTimeout(r, 250))
    return d
  }
  const a = [], b = []
  for (let i = 0; i < 40; i++) { a.push(await one(true)); b.push(await one(false)) }
  const q = (v, p) => v.sort((x, y) => x - y)[Math.floor(v.length * p)].toFixed(2)
  console.error('with', q(a, 0.5), q(a, 0.9), 'without', q(b, 0.5), q(b, 0.9))
})
