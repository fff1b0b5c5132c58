// One sandbox as the benches use it: the same requests as the SDK's, by a client that costs little.
const headers = (s) => ({ 'e2b-sandbox-id': s.sandboxID, 'e2b-sandbox-port': '49983', 'x-access-token': s.envdAccessToken })

function envelope(value) {
  const json = Buffer.from(JSON.stringify(value))
  const head = Buffer.alloc(5)
  head.writeUInt32BE(json.length, 1)
  return Buffer.concat([head, json])
}

export async function create(api, metadata) {
  const r = await api.json('POST', '/v2/sandboxes', { templateID: 'base', timeout: 3600, metadata })
  if (r.status !== 201) throw new Error(`create: ${r.status} ${JSON.stringify(r.json)}`)
  return r.json
}

// Runs a program to its end; throws unless it ended with 0.
export async function exec(api, sandbox, cmd = '/bin/true', args = []) {
  const r = await api.request('POST', '/process.Process/Start', {
    headers: { ...headers(sandbox), 'content-type': 'application/connect+json', 'connect-protocol-version': '1' },
    body: envelope({ process: { cmd, args }, stdin: false }),
  })
  if (r.status !== 200 || !r.body.includes('"exited":true') || /"exitCode":[^0]/.test(r.body)) throw new Error(`exec: ${r.status} ${r.body}`)
}

export async function kill(api, sandbox) {
  const r = await api.request('DELETE', `/sandboxes/${sandbox.sandboxID}`)
  if (r.status !== 204) throw new Error(`kill: ${r.status} ${r.body}`)
}

export { envelope, headers }
