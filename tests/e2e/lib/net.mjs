// Sandboxes of the network tests: made with a policy, asked through lib/netbox.py.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { Sandbox } from 'e2b'
import { api, box, sdk } from './suite.mjs'

const source = readFileSync(path.join(import.meta.dirname, 'netbox.py'), 'utf8')

// Rules as a list and policy groups are ours: the SDK does not send them, so the sandbox is made by hand.
const own = (network) => network?.policies !== undefined || Array.isArray(network?.rules)

export async function createOwn({ network, allowInternetAccess, sdk: options = sdk, client = api() }) {
  const made = await client.call('POST', '/v2/sandboxes', {
    templateID: 'base',
    timeout: 300,
    network,
    ...(allowInternetAccess !== undefined && { allow_internet_access: allowInternetAccess }),
  })
  client.close()
  return Sandbox.connect(made.sandboxID, options)
}

export const install = (sbx) => sbx.files.write('/tmp/netbox.py', source)

// A sandbox with `network` and `allowInternetAccess` as given, ready for `probe`.
export async function netbox(t, { network, allowInternetAccess, ...opts } = {}) {
  let sbx
  if (own(network)) {
    sbx = await createOwn({ network, allowInternetAccess })
    t.after(() => sbx.kill().catch(() => false))
  } else {
    sbx = await box(t, { ...(network && { network }), ...(allowInternetAccess !== undefined && { allowInternetAccess }), ...opts })
  }
  await install(sbx)
  return sbx
}

// Runs probes at the same time, each [op, arguments]; the results in order.
export async function probe(sbx, ...probes) {
  const list = probes.map(([op, args]) => ({ op, ...args }))
  const quoted = `'${JSON.stringify(list).replaceAll("'", `'\\''`)}'`
  const r = await sbx.commands.run(`python3 /tmp/netbox.py ${quoted}`, { timeoutMs: 120_000 })
  return JSON.parse(r.stdout)
}

export const tcp = (host, port = 80, more = {}) => ['tcp', { host, port, ...(port === 7 ? { send: 'x' } : { read: 0 }), ...more }]
export const udp = (host, port = 5353, more = {}) => ['udp', { host, port, ...more }]
export const resolve = (name) => ['resolve', { name }]
export const query = (name, more = {}) => ['query', { name, ...more }]
export const get = (url, more = {}) => ['http', { url, ...more }]
