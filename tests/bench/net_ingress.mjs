// The ingress proxy with all of its policy on beside nginx and haproxy: the same app behind each, the same certificate.
// Our side is proxy-bench: the daemon's server and proxy in front of an app outside of any sandbox, so that all three
// proxies do the same work.
import { execFileSync, spawn } from 'node:child_process'
import { chmodSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import net from 'node:net'
import path from 'node:path'
import { ROOT } from '../e2e/lib/daemon.mjs'
import { sleep, until } from '../e2e/lib/http.mjs'
import { goal, round, stats } from './lib.mjs'

const BENCH = process.env.PROXY_BENCH ?? path.join(ROOT, 'build/tests/bench/proxy-bench')
const IDLE = 1000
const SECONDS = 3
const TOKEN = 'a'.repeat(64)

const freePort = () =>
  new Promise((resolve) => {
    const s = net.createServer().listen(0, '127.0.0.1', () => {
      const { port } = s.address()
      s.close(() => resolve(port))
    })
  })

const listens = (port) =>
  until(`port ${port} answers`, () => new Promise((r) => net.connect(port, '127.0.0.1').on('connect', function () { this.destroy(); r(true) }).on('error', () => r(false))))

const cpuNs = (pid) => readdirSync(`/proc/${pid}/task`).reduce((sum, t) => sum + Number(readFileSync(`/proc/${pid}/task/${t}/schedstat`, 'utf8').split(' ')[0]), 0)
const pss = (pid) => Number(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8').match(/^Pss:\s+(\d+)/m)[1])
const pin = (pid, cpu) => execFileSync('taskset', ['-apc', String(cpu), String(pid)], { stdio: 'ignore' })

function makeCert(dir) {
  const cert = path.join(dir, 'cert.pem')
  const key = path.join(dir, 'key.pem')
  execFileSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2', '-subj', '/CN=bench.test', '-keyout', key, '-out', cert], { stdio: 'ignore' })
  const both = path.join(dir, 'both.pem')
  writeFileSync(both, readFileSync(cert, 'utf8') + readFileSync(key, 'utf8'), { mode: 0o600 })
  return { cert, key, both }
}

async function startNginx(dir, app, pem, add) {
  const [port, tlsPort] = [await freePort(), await freePort()]
  mkdirSync(dir, { recursive: true })
  const location = `location / { proxy_pass http://app; proxy_http_version 1.1; proxy_buffering on; proxy_set_header Host $host;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $conn_up; proxy_read_timeout 620s;
      proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Forwarded-Proto $scheme; proxy_set_header X-Forwarded-Host $host; }`
  writeFileSync(
    path.join(dir, 'nginx.conf'),
    `daemon off; worker_processes 1; pid ${dir}/pid; user root; error_log ${dir}/error.log; worker_rlimit_nofile 8192;
events { worker_connections 4096; }
http {
  access_log off; sendfile on; tcp_nodelay on; keepalive_requests 100000000; keepalive_timeout 600s;
  client_body_temp_path ${dir}/body; proxy_temp_path ${dir}/proxy; fastcgi_temp_path ${dir}/f; uwsgi_temp_path ${dir}/u; scgi_temp_path ${dir}/s;
  map $http_upgrade $conn_up { default upgrade; '' ''; }
  upstream app { server 127.0.0.1:${app}; keepalive 128; keepalive_requests 100000000; }
  server { listen 127.0.0.1:${port}; ${location} }
  server { listen 127.0.0.1:${tlsPort} ssl; ssl_certificate ${pem.cert}; ssl_certificate_key ${pem.key}; ssl_protocols TLSv1.3; ssl_session_cache shared:s:8m; ${location} }
}
`
  )
  const child = spawn('nginx', ['-p', dir, '-c', path.join(dir, 'nginx.conf')], { stdio: ['ignore', 'ignore', 'inherit'] })
  const p = { name: 'nginx', child, port, tlsPort, host: 'bench.test' }
  add(p)
  await listens(port)
  p.pid = Number(readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8').trim().split(' ')[0])
}

async function startHaproxy(dir, app, pem, add) {
  const [port, tlsPort] = [await freePort(), await freePort()]
  mkdirSync(dir, { recursive: true })
  const file = path.join(dir, 'haproxy.cfg')
  writeFileSync(
    file,
    `global
  nbthread 1
  maxconn 4096
  ssl-default-bind-options ssl-min-ver TLSv1.3
defaults
  mode http
  timeout connect 5s
  timeout client 620s
  timeout server 620s
  timeout tunnel 620s
  option forwardfor
  http-reuse always
frontend f
  bind 127.0.0.1:${port}
  bind 127.0.0.1:${tlsPort} ssl crt ${pem.both}
  default_backend b
backend b
  server app 127.0.0.1:${app} pool-max-conn 128
`
  )
  const child = spawn('haproxy', ['-db', '-f', file], { stdio: ['ignore', 'ignore', 'ignore'] })
  add({ name: 'haproxy', child, pid: child.pid, port, tlsPort, host: 'bench.test' })
  await listens(port)
}

async function startOurs(dir, app, pem, add) {
  const [port, tlsPort] = [await freePort(), await freePort()]
  const child = spawn(BENCH, [String(port), String(app), String(tlsPort), pem.cert, pem.key], { stdio: ['ignore', 'ignore', 'inherit'] })
  add({ name: 'holdfast', child, pid: child.pid, port, tlsPort, host: '8000-private.localhost', header: `e2b-traffic-access-token: ${TOKEN}` })
  await listens(port)
}

async function withProxies({ data, tools }, fn) {
  const dir = path.join(data, 'ingress')
  mkdirSync(dir, { recursive: true })
  chmodSync(dir, 0o755)
  const pem = makeCert(dir)
  const appPort = await freePort()
  const app = spawn('taskset', ['-c', '1', path.join(tools, 'upstream'), String(appPort)], { stdio: 'ignore' })
  const proxies = []
  try {
    await listens(appPort)
    for (const start of [startOurs, startNginx, startHaproxy]) await start(path.join(dir, start.name), appPort, pem, (p) => proxies.push(p))
    // Each proxy has core 0 to itself while it is measured; the load and the app share core 1.
    for (const p of proxies) pin(p.pid, 0)
    return await fn(proxies)
  } finally {
    for (const p of proxies) p.child.kill('SIGTERM')
    app.kill('SIGKILL')
    await sleep(100)
  }
}

function run(cmd, args) {
  return new Promise((resolve, reject) => {
    const child = spawn('taskset', ['-c', '1', cmd, ...args], { stdio: ['ignore', 'pipe', 'inherit'] })
    let out = ''
    child.stdout.on('data', (d) => (out += d))
    child.on('exit', (code) => (code === 0 ? resolve(out) : reject(new Error(`${cmd} ${args.join(' ')}: ${code} ${out}`))))
  })
}

// One wrk run → {us, rps}: CPU µs per request of the proxy, requests/s.
async function wrk(p, url, connections = 32) {
  const args = ['-t1', `-c${connections}`, `-d${SECONDS}s`, '-H', `Host: ${p.host}`]
  if (p.header) args.push('-H', p.header)
  const before = cpuNs(p.pid)
  const out = await run('wrk', [...args, url])
  const used = cpuNs(p.pid) - before
  const requests = Number(out.match(/(\d+) requests in/)?.[1])
  if (!requests || /Non-2xx|Socket errors/.test(out)) throw new Error(`${p.name}: ${out}`)
  return { us: used / requests / 1000, rps: Number(out.match(/Requests\/sec:\s+([\d.]+)/)[1]) }
}

async function echo(p, tools) {
  const before = cpuNs(p.pid)
  const out = await run(path.join(tools, 'wsload'), [String(p.port), p.host, '32', String(SECONDS), ...(p.header ? [p.header] : [])])
  const n = Number(out.trim().split('\n').at(-1))
  return { us: (cpuNs(p.pid) - before) / n / 1000, rps: n / SECONDS }
}

async function compare(ctx, what, unit, measure) {
  return withProxies(ctx, async (proxies) => {
    const got = Object.fromEntries(proxies.map((p) => [p.name, []]))
    for (let i = -1; i < ctx.rounds; i++)
      for (const p of proxies) {
        const r = await measure(p)
        if (i >= 0) got[p.name].push(r)
      }
    const of = (name, k) => stats(got[name].map((x) => x[k]))
    const rows = Object.keys(got).flatMap((name) => [
      { what: `${what}, ${name}, CPU`, ...of(name, 'us'), unit: `µs/${unit}` },
      { what: `${what}, ${name}`, ...of(name, 'rps'), unit: `${unit}s/s` },
    ])
    const ratio = (peer) => of('holdfast', 'us').p50 / of(peer, 'us').p50
    return {
      rows,
      goals: [goal(`${what}: CPU per ${unit} / nginx`, ratio('nginx'), 1.0)],
      notes: [
        `CPU per ${unit} / haproxy: ${round(ratio('haproxy'), 3)}`,
        `${ctx.rounds} interleaved runs of ${SECONDS} s; proxy on core 0, load and app on core 1; ours: traffic token, masked host and limits on`,
      ],
    }
  })
}

// What 1,000 open WebSockets that say nothing add to a proxy's own memory (PSS).
async function idle(ctx) {
  return withProxies(ctx, async (proxies) => {
    const rows = []
    for (const p of proxies) {
      await wrk(p, `http://127.0.0.1:${p.port}/`) // what it keeps once it has worked is not a tunnel's
      const before = pss(p.pid)
      const load = spawn(path.join(ctx.tools, 'wsload'), [String(p.port), p.host, String(IDLE), '0', ...(p.header ? [p.header] : [])], { stdio: ['pipe', 'pipe', 'inherit'] })
      await new Promise((resolve, reject) => (load.stdout.once('data', resolve), load.once('exit', () => reject(new Error(`${p.name}: the load ended`)))))
      await sleep(1000)
      rows.push({ what: `idle WebSocket, ${p.name}`, kib: round((pss(p.pid) - before) / IDLE, 3), unit: 'KiB of PSS each' })
      const ended = new Promise((r) => load.once('exit', r))
      load.stdin.end()
      await ended
    }
    const [ours, nginx, haproxy] = rows.map((r) => r.kib)
    return {
      rows,
      goals: [goal('memory per idle WebSocket / nginx', ours / nginx, 0.5)],
      notes: [`memory per idle WebSocket / haproxy: ${round(ours / haproxy, 3)}`, `${IDLE} tunnels; the kernel’s socket buffers are the same for all and not counted`],
    }
  })
}

export const figures = {
  'ingress-plain': (ctx) => compare(ctx, 'plain', 'request', (p) => wrk(p, `http://127.0.0.1:${p.port}/`)),
  'ingress-tls': (ctx) => compare(ctx, 'TLS 1.3', 'request', (p) => wrk(p, `https://127.0.0.1:${p.tlsPort}/`)),
  'ingress-websocket': (ctx) => compare(ctx, 'WebSocket echo', 'message', (p) => echo(p, ctx.tools)),
  'ingress-mib': (ctx) => compare(ctx, '1 MiB bodies', 'request', (p) => wrk(p, `http://127.0.0.1:${p.port}/mib`, 8)),
  'ingress-mib-tls': (ctx) => compare(ctx, '1 MiB bodies over TLS', 'request', (p) => wrk(p, `https://127.0.0.1:${p.tlsPort}/mib`, 8)),
  'ingress-idle': idle,
}
