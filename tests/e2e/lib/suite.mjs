// What every e2e test file starts from: the daemon that run.mjs started, sandboxes that end with the test.
import assert from 'node:assert/strict'
import { Sandbox } from 'e2b'
import { HttpClient } from './http.mjs'

const env = (name) => {
  const value = process.env[name]
  if (!value && process.env.HF_SUITE === 'faults') return '' // those start daemons of their own
  if (!value) throw new Error(`${name} is not set: run ./dev test e2e`)
  return value
}

export const url = env('HF_E2E_URL')
export const sdk = { apiKey: env('HF_E2E_KEY'), apiUrl: url, sandboxUrl: url }
export const otherSdk = { ...sdk, apiKey: env('HF_E2E_KEY2') }
export const daemonFacts = { data: env('HF_E2E_DATA') }

export const api = (apiKey = sdk.apiKey) => new HttpClient(url, { 'x-api-key': apiKey })

// A sandbox that lives as long as the test (or the file, when given `after` of a suite).
export async function box(t, opts = {}) {
  const sandbox = await Sandbox.create(opts.template ?? 'base', { ...sdk, timeoutMs: 300_000, ...opts })
  t.after(() => sandbox.kill().catch(() => false))
  return sandbox
}

// Headers that route a request to a port of a sandbox, as the SDK sends them.
export const routed = (sandbox, port = 49983) => ({
  'e2b-sandbox-id': sandbox.sandboxId,
  'e2b-sandbox-port': String(port),
  'x-access-token': sandbox.envdAccessToken ?? '',
})

// A client of the daemon's data plane for one sandbox.
export const dataPlane = (sandbox, port) => new HttpClient(url, routed(sandbox, port))

export async function rejects(promise, name, text) {
  const error = await promise.then(
    (value) => assert.fail(`expected ${name}, got ${JSON.stringify(value)}`),
    (e) => e
  )
  assert.equal(error.constructor.name, name, `${error.constructor.name}: ${error.message}`)
  if (text) assert.match(error.message, text)
  return error
}

export const text = (n, seed = 1) => {
  // Deterministic, not compressible to nothing, valid ASCII.
  const out = Buffer.alloc(n)
  let x = seed >>> 0 || 1
  for (let i = 0; i < n; i++) {
    x = (Math.imul(x, 1664525) + 1013904223) >>> 0
    out[i] = 32 + (x >>> 24) % 95
  }
  return out
}
