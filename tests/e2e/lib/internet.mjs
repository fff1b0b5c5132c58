// A small internet made of network namespaces, with no way out of them:
//
//   <tag>-host   the machine that runs holdfast: 192.0.2.2/24, 2001:db8::2/64, default routes to the other one
//   <tag>-net    everything else: names, origins, a metadata service, a private network, the company's resolver
//
// Tests run inside <tag>-host (againInside), so the real host's interfaces, rules and sysctls are never touched.
// nsenter, not `ip netns exec`: that would remount /sys and hide the cgroups.
import { execFileSync, spawn } from 'node:child_process'
import { mkdtempSync, rmSync, existsSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import os from 'node:os'
import path from 'node:path'
import { until } from './http.mjs'

const run = (cmd, ...args) => execFileSync(cmd, args, { stdio: ['ignore', 'pipe', 'pipe'] }).toString()
const ip = (...args) => run('ip', ...args)

export const UPSTREAM_DNS = '198.51.100.53'
export const COMPANY_DNS = '10.77.0.53'
const V4 = [
  '198.51.100.10', '198.51.100.11', '198.51.100.12', '198.51.100.20', '198.51.100.30', '198.51.100.31', '198.51.100.40', '198.51.100.41',
  '198.51.100.50', '198.51.100.53', '198.51.100.60', '198.51.100.70', '198.51.100.80', '198.51.100.90', '203.0.113.66', '203.0.113.80',
  '10.77.0.5', '10.77.0.53', '169.254.169.254', '100.100.100.200', '172.16.9.9', '192.168.9.9', '100.64.9.9', '192.0.2.1',
]
const V6 = ['2001:db8:1::10', '2001:db8:1::20', '2001:db8:1::30', '2001:db8:2::66', 'fd77::5', 'fd00:ec2::254']

function certificates(dir) {
  const file = (name) => path.join(dir, name)
  // OpenSSL takes no wildcard directly below a top-level name.
  const names = ['allowed', 'other', 'evil', 'private', 'mixed', 'redirect', 'cdn-a', 'cdn-b', 'ssh443', 'db', 'rebind', 'alias', 'many', 'ttl1', 'wild', 'evilallowed']
    .map((n) => `${n}.example`)
    .concat('*.wild.example', '*.b.wild.example', '*.model.example', '*.corp.test', '*.example.evil.example')
  writeFileSync(file('ext'), `subjectAltName=${names.map((n) => `DNS:${n}`).join(',')}\nbasicConstraints=CA:FALSE\n`)
  const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes']
  run('openssl', 'req', '-x509', ...key, '-keyout', file('cakey.pem'), '-out', file('ca.pem'), '-days', '30', '-subj', '/CN=Test Internet CA')
  run('openssl', 'req', ...key, '-keyout', file('key.pem'), '-out', file('csr'), '-subj', '/CN=origin.example')
  run('openssl', 'x509', '-req', '-in', file('csr'), '-CA', file('ca.pem'), '-CAkey', file('cakey.pem'), '-CAcreateserial',
    '-days', '30', '-extfile', file('ext'), '-out', file('cert.pem'))
  run('openssl', 'req', '-x509', ...key, '-keyout', file('badkey.pem'), '-out', file('bad.pem'), '-days', '30', '-subj', '/CN=badcert.example')
}

export class Internet {
  constructor(tag = `hf-e2e-${process.pid}`) {
    this.tag = tag
    this.host = `${tag}-host`
    this.net = `${tag}-net`
    this.dir = mkdtempSync(path.join(os.tmpdir(), 'hf-internet-'))
    this.onExit = () => this.remove()
  }

  // Makes the namespaces and their wire.
  make() {
    process.on('exit', this.onExit)
    for (const ns of [this.host, this.net]) {
      ip('netns', 'add', ns)
      ip('-n', ns, 'link', 'set', 'lo', 'up')
    }
    ip('-n', this.host, 'link', 'add', 'wan0', 'type', 'veth', 'peer', 'name', 'n0', 'netns', this.net)
    const both = [[this.host, 'wan0', '192.0.2.2/24', '2001:db8::2/64'], [this.net, 'n0', '192.0.2.1/24', '2001:db8::1/64']]
    for (const [ns, dev, v4, v6] of both) {
      ip('-n', ns, 'addr', 'add', v4, 'dev', dev)
      ip('-n', ns, 'addr', 'add', v6, 'dev', dev, 'nodad')
      ip('-n', ns, 'link', 'set', dev, 'up')
    }
    ip('-n', this.host, 'route', 'add', 'default', 'via', '192.0.2.1')
    ip('-n', this.host, '-6', 'route', 'add', 'default', 'via', '2001:db8::1')
    for (const a of V4) if (a !== '192.0.2.1') ip('-n', this.net, 'addr', 'add', `${a}/32`, 'dev', 'lo')
    for (let i = 100; i < 140; i++) ip('-n', this.net, 'addr', 'add', `198.51.100.${i}/32`, 'dev', 'lo')
    for (const a of V6) ip('-n', this.net, 'addr', 'add', `${a}/128`, 'dev', 'lo', 'nodad')
    certificates(this.dir)
    return this
  }

  // Starts the servers; resolves when all of them listen.
  async serve() {
    const log = path.join(this.dir, 'origins.log')
    const script = path.join(import.meta.dirname, 'origins.mjs')
    this.child = spawn('nsenter', [`--net=/run/netns/${this.net}`, process.execPath, script, this.dir, ...V4, ...V6], {
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    })
    let ended
    this.child.on('exit', (code, signal) => (ended = signal ?? code))
    await until(`the test internet serves (${log})`, () => {
      if (ended !== undefined) throw new Error(`the test internet ended: ${ended}`)
      return existsSync(path.join(this.dir, 'ctl.sock'))
    }, { timeoutMs: 20_000 })
    return this
  }

  // What a process inside the "host" needs to find all this.
  env() {
    return {
      HF_NET_DIR: this.dir,
      HF_NET_TAG: this.tag,
      HOLDFAST_DNS_UPSTREAMS: UPSTREAM_DNS,
      HOLDFAST_EGRESS_CA_FILE: path.join(this.dir, 'ca.pem'),
    }
  }

  remove() {
    process.off('exit', this.onExit)
    this.child?.kill('SIGKILL')
    for (const ns of [this.host, this.net]) {
      try {
        ip('netns', 'del', ns)
      } catch {
        // never made, or gone
      }
    }
    rmSync(this.dir, { recursive: true, force: true })
  }
}

// Makes the internet, runs this very program again in its "host", and takes it all away: the exit status.
export async function againInside() {
  const internet = new Internet().make()
  try {
    await internet.serve()
    const child = spawn('nsenter', [`--net=/run/netns/${internet.host}`, process.execPath, ...process.argv.slice(1)], {
      stdio: ['ignore', 'inherit', 'inherit'],
      env: { ...process.env, ...internet.env() },
    })
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill(signal))
    return await new Promise((resolve) => child.on('exit', (code) => resolve(code ?? 1)))
  } finally {
    internet.remove()
  }
}

// ---- for tests, which run inside the "host" ----

function ask(method) {
  return new Promise((resolve, reject) => {
    const req = http.request({ socketPath: path.join(process.env.HF_NET_DIR, 'ctl.sock'), method, path: '/' }, (res) => {
      let text = ''
      res.on('data', (d) => (text += d))
      res.on('end', () => resolve(JSON.parse(text)))
    })
    req.on('error', reject)
    req.end()
  })
}

// Everything that arrived outside since the last forget: { dns, http, tcp, udp }.
export const seen = () => ask('GET')
export const forget = () => ask('DELETE')
