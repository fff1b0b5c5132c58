// The L7 egress proxy beside mitmproxy: the same rule (one host, one header added, TLS on both sides) in front of the
// same nginx, which is a network namespace away. Proxy on one core, nginx and load on the other.
import { execFile, execFileSync, spawn } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { promisify } from 'node:util'
import { ROOT } from '../e2e/lib/daemon.mjs'
import { sleep } from '../e2e/lib/http.mjs'
import { Proxy, certificates, makeNets, removeNets } from '../integration/egress/net.mjs'
import { goal, round } from './lib.mjs'

const HOST = process.env.L7_HOST ?? path.join(ROOT, 'build/tests/integration/egress/l7-host')
const SECONDS = 4
const CONNS = 32
const ORIGIN = '203.0.113.10'

const inNs = (ns) => ['nsenter', `--net=/run/netns/${ns}`]
const cpuNs = (pid) => readdirSync(`/proc/${pid}/task`).reduce((sum, t) => sum + Number(readFileSync(`/proc/${pid}/task/${t}/schedstat`, 'utf8').split(' ')[0]), 0)

function startNginx(dir, ns) {
  writeFileSync(
    path.join(dir, 'nginx.conf'),
    `daemon off; worker_processes 1; pid ${dir}/nginx.pid; user root; error_log ${dir}/error.log;
events { worker_connections 2048; }
http { access_log off; tcp_nodelay on; keepalive_requests 100000000; keepalive_timeout 600s;
  client_body_temp_path ${dir}/b; proxy_temp_path ${dir}/p; fastcgi_temp_path ${dir}/f; uwsgi_temp_path ${dir}/u; scgi_temp_path ${dir}/s;
  server { listen ${ORIGIN}:443 ssl; ssl_certificate ${dir}/api.test.pem; ssl_certificate_key ${dir}/api.test.key; ssl_protocols TLSv1.3;
    location / { if ($http_authorization != "Bearer bench-key") { return 401; } return 200 "0123456789abcdef0123456789abcdef"; } } }
`
  )
  return spawn('taskset', ['-c', '1', ...inNs(ns), 'nginx', '-p', dir, '-c', path.join(dir, 'nginx.conf')], { stdio: ['ignore', 'ignore', 'inherit'] })
}

// wrk takes the SNI from its URL, so the name has to resolve: in a mount namespace with a hosts file of its own.
// Not synchronously: l7-host writes its records to this process.
async function wrk(dir, ns, addr, port, conns, header) {
  const hosts = path.join(dir, `hosts-${addr}`)
  writeFileSync(hosts, `${addr} api.test\n`)
  const load = ['wrk', '-t1', `-c${conns}`, `-d${SECONDS}s`, '--latency', '-H', 'Host: api.test', ...header, `https://api.test:${port}/`]
  const { stdout: out } = await promisify(execFile)('taskset', ['-c', '1', ...inNs(ns), 'unshare', '-m', 'sh', '-c', `mount --bind ${hosts} /etc/hosts && exec "$@"`, 'wrk', ...load], { encoding: 'utf8' })
  if (/Non-2xx|Socket errors/.test(out)) throw new Error(`errors under load: ${out}`)
  const p50 = /50%\s+([\d.]+)(us|ms|s)/.exec(out)
  const unit = { us: 0.001, ms: 1, s: 1000 }[p50[2]]
  return { rps: Number(/Requests\/sec:\s+([\d.]+)/.exec(out)[1]), p50: Number(p50[1]) * unit }
}

async function startOurs(dir, ns) {
  const proxy = new Proxy(HOST, `${dir}/ca.pem`, ['taskset', '-c', '0', ...inNs(ns)])
  const ca = readFileSync(`${dir}/tenant/ca.pem`, 'utf8')
  await proxy.tell({ do: 'tenant', name: 'acme', secrets: { key: 'bench-key' }, ca_cert: ca, ca_key: readFileSync(`${dir}/tenant/ca.key`, 'utf8') })
  await proxy.tell({ do: 'orig', source: 0, addr: ORIGIN, port: 443 })
  await proxy.tell({ do: 'name', name: 'api.test', addr: ORIGIN, learned: true })
  await proxy.box('127.0.0.1', {
    denyOut: ['0.0.0.0/0'],
    rules: [{ name: 'api', host: 'api.test', scheme: 'https', action: 'allow', audit: 'metadata', inject: [{ header: 'authorization', secret: 'KEY', format: 'Bearer ${SECRET}' }] }],
  })
  return { name: 'holdfast', pid: proxy.proc.pid, port: 15001, end: () => proxy.end() }
}

async function startMitmproxy(dir, ns) {
  const child = spawn('taskset', ['-c', '0', ...inNs(ns), 'mitmdump', '-q', '--set', `confdir=${dir}/mitm`, '--mode', `reverse:https://${ORIGIN}:443`, '--listen-host', '127.0.0.1', '-p', '15002',
    '--set', `ssl_verify_upstream_trusted_ca=${dir}/ca.pem`, '--modify-headers', '/~q/authorization/Bearer bench-key'], { stdio: ['ignore', 'inherit', 'inherit'] })
  await sleep(4000)
  return { name: 'mitmproxy', pid: child.pid, port: 15002, end: () => child.kill('SIGKILL') }
}

async function measure(dir, ns, p) {
  await wrk(dir, ns, '127.0.0.1', p.port, 4, []) // warm up
  const before = cpuNs(p.pid)
  const many = await wrk(dir, ns, '127.0.0.1', p.port, CONNS, [])
  const cpu = cpuNs(p.pid) - before
  const one = await wrk(dir, ns, '127.0.0.1', p.port, 1, [])
  return { rps: many.rps, cpu_us: cpu / 1000 / (many.rps * SECONDS), p50_ms: one.p50 }
}

async function l7({ data }) {
  if (!existsSync(HOST)) throw new Error(`${HOST} is not built: ./dev build`)
  const dir = path.join(data, 'l7')
  rmSync(dir, { recursive: true, force: true })
  mkdirSync(path.join(dir, 'tenant'), { recursive: true })
  certificates(HOST, dir)
  execFileSync(HOST, ['--ca', path.join(dir, 'tenant')])
  const id = `hf-egress-b${process.pid}`
  const running = []
  try {
    makeNets(id)
    const nginx = startNginx(dir, `${id}-o`)
    running.push(() => nginx.kill('SIGTERM'))
    await sleep(500)
    const direct = await wrk(dir, `${id}-h`, ORIGIN, 443, 1, ['-H', 'Authorization: Bearer bench-key'])
    const result = {}
    for (const start of [startOurs, startMitmproxy]) {
      const p = await start(dir, `${id}-h`)
      running.push(p.end)
      result[p.name] = await measure(dir, `${id}-h`, p)
      await running.pop()()
    }
    const { holdfast: h, mitmproxy: m } = result
    return {
      rows: Object.entries(result).map(([name, r]) => ({ name, 'requests/s': round(r.rps, 0), 'CPU µs/request': round(r.cpu_us, 1), 'median ms, one connection': round(r.p50_ms, 3), 'added ms': round(r.p50_ms - direct.p50, 3) })),
      goals: [goal('L7: requests/s against mitmproxy', h.rps / m.rps, 5, false)],
      notes: [`the origin without a proxy: median ${round(direct.p50, 3)} ms; ${CONNS} kept connections, HTTP/1.1, TLS 1.3 on both sides, one header added`],
    }
  } finally {
    for (const end of running.reverse()) await end()
    removeNets(id)
  }
}

export const figures = { l7 }
