// A lean HTTP client on node:http with keep-alive: for our own API, for raw requests that the SDK never sends,
// and for the bench, where the client's own cost must stay small.
import http from 'node:http'

export class HttpClient {
  constructor(baseUrl, headers = {}, { maxSockets = 256 } = {}) {
    const url = new URL(baseUrl)
    this.host = url.hostname
    this.port = Number(url.port)
    this.headers = headers
    this.agent = new http.Agent({ keepAlive: true, maxSockets })
  }

  // → {status, headers, body: Buffer}; path is sent as it is.
  request(method, path, { headers = {}, body, timeoutMs = 60_000 } = {}) {
    return new Promise((resolve, reject) => {
      const all = { ...this.headers, ...headers }
      if (body !== undefined && all['content-length'] === undefined && all['transfer-encoding'] === undefined)
        all['content-length'] = Buffer.byteLength(body)
      const req = http.request(
        { host: this.host, port: this.port, method, path, headers: all, agent: this.agent, timeout: timeoutMs },
        (res) => {
          const chunks = []
          res.on('data', (c) => chunks.push(c))
          res.on('end', () => resolve({ status: res.statusCode, headers: res.headers, body: Buffer.concat(chunks) }))
          res.on('error', reject)
          res.on('aborted', () => reject(new Error('response cut off')))
        }
      )
      req.on('timeout', () => req.destroy(new Error(`no answer in ${timeoutMs} ms: ${method} ${path}`)))
      req.on('error', reject)
      req.end(body)
    })
  }

  // JSON in, JSON out → {status, headers, json}; json is undefined for an empty body.
  async json(method, path, value, { headers = {}, timeoutMs } = {}) {
    const body = value === undefined ? undefined : JSON.stringify(value)
    const type = body === undefined ? {} : { 'content-type': 'application/json' }
    const res = await this.request(method, path, { headers: { ...type, ...headers }, body, timeoutMs })
    const text = res.body.toString()
    let json
    if (text !== '') {
      try {
        json = JSON.parse(text)
      } catch {
        throw new Error(`${method} ${path}: ${res.status} with a body that is not JSON: ${text.slice(0, 200)}`)
      }
    }
    return { status: res.status, headers: res.headers, json }
  }

  // Like json, but any status other than the expected ones is an error.
  async call(method, path, value, { expect = [200, 201, 202, 204], ...opts } = {}) {
    const res = await this.json(method, path, value, opts)
    if (![expect].flat().includes(res.status))
      throw new Error(`${method} ${path}: ${res.status} ${JSON.stringify(res.json)}`)
    return res.json
  }

  close() {
    this.agent.destroy()
  }
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

// Polls until check() gives something truthy; returns it, or throws after timeoutMs.
export async function until(what, check, { timeoutMs = 10_000, everyMs = 10 } = {}) {
  const end = performance.now() + timeoutMs
  for (;;) {
    const value = await check()
    if (value) return value
    if (performance.now() > end) throw new Error(`not within ${timeoutMs} ms: ${what}`)
    await sleep(everyMs)
  }
}
