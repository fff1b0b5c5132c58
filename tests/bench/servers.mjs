// The figures beside nginx: the data plane as a reverse proxy, and file transfer.
import { execFileSync, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import http from 'node:http'
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import net from 'node:net'
import path from 'node:path'
import { Sandbox } from 'e2b'
import { ROOT } from '../e2e/lib/daemon.mjs'
import { sleep, until } from '../e2e/lib/http.mjs'
import { goal, round, stats } from './lib.mjs'
import * as box from './sandbox.mjs'

const freePort = () =>
  new Promise((resolve) => {
    const s = net.createServer().listen(0, '127.0.0.1', () => {
      const { port } = s.address()
      s.close(() => resolve(port))
    })
  })

// nginx as it is used in production: one worker, keep-alive to the upstream, no access log.
async function startNginx(dir, upstreamPort) {
  rmSync(dir, { recursive: true, force: true })
  mkdirSync(path.join(dir, 'files'), { recursive: true })
  const port = await freePort()
  writeFileSync(
    path.join(dir, 'nginx.conf'),
    `daemon off; worker_processes 1; pid ${dir}/pid; user root; error_log ${dir}/error.log; worker_rlimit_nofile 4096;
events { worker_connections 2048; }
http {
  access_log off; sendfile on; tcp_nodelay on; keepalive_requests 100000000; keepalive_timeout 600s; client_max_body_size 0;
  client_body_temp_path ${dir}/body; proxy_temp_path ${dir}/proxy; fastcgi_temp_path ${dir}/f; uwsgi_temp_path ${dir}/u; scgi_temp_path ${dir}/s;
  upstream app { server 127.0.0.1:${upstreamPort}; keepalive 128; keepalive_requests 100000000; }
  server {
    listen 127.0.0.1:${port};
    location / { proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host; proxy_set_header X-Forwarded-For $remote_addr; }
    location /files/ { root ${dir}; dav_methods PUT; create_full_put_path on; client_body_buffer_size 256k; }
  }
}
`
  )
  const child = spawn('nginx', ['-p', dir, '-c', path.join(dir, 'nginx.conf')], { stdio: ['ignore', 'ignore', 'inherit'] })
  await until('nginx answers', () => new Promise((r) => http.get({ host: '127.0.0.1', port, path: '/files/x' }, (res) => (res.resume(), r(true))).on('error', () => r(false))))
  const children = readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8').trim().split(' ').map(Number)
  return { child, port, worker: children[0], dir }
}

// Time on a CPU in ns of all threads of a process.
const cpuNs = (pid) => readdirSync(`/proc/${pid}/task`).reduce((sum, t) => sum + Number(readFileSync(`/proc/${pid}/task/${t}/schedstat`, 'utf8').split(' ')[0]), 0)

const pin = (pid, cpu) => execFileSync('taskset', ['-apc', String(cpu), String(pid)], { stdio: 'ignore' })

// One wrk run → {rps, us}: requests/s and CPU µs per request of the proxy.
function wrk(url, pid, extra = [], seconds = 3) {
  return new Promise((resolve, reject) => {
    const before = cpuNs(pid)
    const child = spawn('taskset', ['-c', '1', 'wrk', '-t1', '-c32', `-d${seconds}s`, ...extra, url], { stdio: ['ignore', 'pipe', 'inherit'] })
    let out = ''
    child.stdout.on('data', (d) => (out += d))
    child.on('exit', (code) => {
      const used = cpuNs(pid) - before
      const requests = Number(out.match(/(\d+) requests in/)?.[1])
      if (code !== 0 || !requests || /Non-2xx|Socket errors/.test(out)) return reject(new Error(`wrk ${url}: ${out}`))
      resolve({ rps: Number(out.match(/Requests\/sec:\s+([\d.]+)/)[1]), us: used / requests / 1000 })
    })
  })
}

export async function proxy({ warm, dir, upstream }) {
  const s = await box.create(warm.api)
  const sdk = await Sandbox.connect(s.sandboxID, await warm.daemon.sdk())
  await sdk.files.write('/tmp/upstream', new Blob([readFileSync(upstream)]))
  const app = await sdk.commands.run('chmod +x /tmp/upstream && exec /tmp/upstream 8080', { background: true, timeoutMs: 0 })
  app.wait().catch(() => {})
  await until('the app listens', () => app.stdout.includes('listening'))
  const hostPort = await freePort()
  const hostApp = spawn('taskset', ['-c', '1', upstream, String(hostPort)], { stdio: 'ignore' })
  const nginx = await startNginx(path.join(dir, 'nginx'), hostPort)
  const likePort = await freePort()
  const like = spawn(path.join(ROOT, 'build/tests/bench/proxy-bench'), [String(likePort), String(hostPort)], { stdio: 'ignore' })
  try {
    // Each proxy has core 0 to itself; wrk and the app share core 1.
    const daemonPid = warm.daemon.child.pid
    pin(daemonPid, 0)
    pin(nginx.worker, 0)
    pin(like.pid, 0)
    const { cellOf } = await import('../e2e/lib/host.mjs')
    for (const p of cellOf(warm.daemon, s.sandboxID).processes) pin(p.pid, 1)
    const routes = ['-H', `Host: 8080-${s.sandboxID}.localhost`]
    const ours = []
    const same = []
    const theirs = []
    for (let i = -1; i < 10; i++) {
      const a = await wrk(`${warm.daemon.url}/`, daemonPid, routes)
      const c = await wrk(`http://127.0.0.1:${likePort}/`, like.pid, ['-H', 'Host: 8000-bench.localhost'])
      const b = await wrk(`http://127.0.0.1:${nginx.port}/`, nginx.worker)
      if (i >= 0) ours.push(a), same.push(c), theirs.push(b)
    }
    const of = (list, k) => stats(list.map((x) => x[k]))
    const rows = [
      { what: 'holdfast proxy, CPU', ...of(ours, 'us'), unit: 'µs/request' },
      { what: 'the same, app outside, CPU', ...of(same, 'us'), unit: 'µs/request' },
      { what: 'nginx proxy_pass, CPU', ...of(theirs, 'us'), unit: 'µs/request' },
      { what: 'holdfast proxy', ...of(ours, 'rps'), unit: 'requests/s' },
      { what: 'the same, app outside', ...of(same, 'rps'), unit: 'requests/s' },
      { what: 'nginx proxy_pass', ...of(theirs, 'rps'), unit: 'requests/s' },
    ]
    return {
      rows,
      goals: [
        goal('proxy CPU per request / nginx', rows[0].p50 / rows[2].p50, 1.0),
        goal('proxy requests/s / nginx, same app (at least)', rows[4].p50 / rows[5].p50, 1.0, false),
      ],
      notes: ['10 interleaved runs of 3 s, wrk -t1 -c32, 27-byte JSON; proxy pinned to core 0, wrk and the app (one C program) to core 1; CPU from schedstat',
        'the app runs inside the sandbox for the first row of each kind, where every call of it passes the seccomp filter; core 1 is the limit of requests/s',
        'app outside: the same proxy code (proxy-bench) in front of the very process that nginx has',
      ],
    }
  } finally {
    pin(warm.daemon.child.pid, '0,1')
    nginx.child.kill('SIGTERM')
    like.kill('SIGKILL')
    hostApp.kill('SIGKILL')
    await app.kill().catch(() => {})
    await box.kill(warm.api, s)
  }
}

const MIB = 1 << 20

function download(options) {
  return new Promise((resolve, reject) => {
    const t0 = performance.now()
    http
      .get(options, (res) => {
        let n = 0
        res.on('data', (c) => (n += c.length))
        res.on('end', () => (n === 100 * MIB ? resolve(100 / ((performance.now() - t0) / 1000)) : reject(new Error(`download: ${res.statusCode}, ${n} bytes`))))
        res.on('error', reject)
      })
      .on('error', reject)
  })
}

function upload(options, data) {
  return new Promise((resolve, reject) => {
    const t0 = performance.now()
    const req = http.request({ ...options, headers: { ...options.headers, 'content-length': data.length } }, (res) => {
      res.resume()
      res.on('end', () => (res.statusCode < 300 ? resolve(100 / ((performance.now() - t0) / 1000)) : reject(new Error(`upload: ${res.statusCode}`))))
    })
    req.on('error', reject)
    req.end(data)
  })
}

export async function files({ warm, dir }) {
  const data = createHash('shake256', { outputLength: MIB }).update('bench').digest()
  const big = Buffer.concat(Array.from({ length: 100 }, () => data))
  const s = await box.create(warm.api)
  const opts = await warm.daemon.sdk()
  const sdk = await Sandbox.connect(s.sandboxID, opts)
  const nginx = await startNginx(path.join(dir, 'nginx'), await freePort())
  const { hostname, port } = new URL(warm.daemon.url)
  const agent = new http.Agent({ keepAlive: true })
  const ours = { host: hostname, port, agent, path: '/files?path=/home/user/big', headers: box.headers(s) }
  const theirs = { host: '127.0.0.1', port: nginx.port, agent, path: '/files/big' }
  const blob = new Blob([big])
  const timed = async (fn) => {
    const t0 = performance.now()
    await fn()
    return 100 / ((performance.now() - t0) / 1000)
  }
  const subjects = {
    'upload, holdfast': () => upload({ ...ours, method: 'POST', headers: { ...ours.headers, 'content-type': 'application/octet-stream' } }, big),
    'upload, nginx PUT': () => upload({ ...theirs, method: 'PUT' }, big),
    'download, holdfast': () => download(ours),
    'download, nginx': () => download(theirs),
    'upload by SDK, holdfast': () => timed(() => sdk.files.write('/home/user/big', blob, { useOctetStream: true })),
    'download by SDK, holdfast': () => timed(() => sdk.files.read('/home/user/big', { format: 'bytes' })),
  }
  const samples = Object.fromEntries(Object.keys(subjects).map((k) => [k, []]))
  try {
    for (let i = -1; i < 15; i++)
      for (const [name, run] of Object.entries(subjects)) {
        const mbs = await run()
        if (i >= 0) samples[name].push(mbs)
        await sleep(50)
      }
  } finally {
    agent.destroy()
    nginx.child.kill('SIGTERM')
    await box.kill(warm.api, s)
  }
  const p = (k) => stats(samples[k]).p50
  return {
    rows: Object.entries(samples).map(([what, v]) => ({ what, ...stats(v), unit: 'MiB/s' })),
    goals: [
      goal('upload of 100 MiB / nginx (at least)', round(p('upload, holdfast') / p('upload, nginx PUT'), 3), 0.7, false),
      goal('download of 100 MiB / nginx (at least)', round(p('download, holdfast') / p('download, nginx'), 3), 0.7, false),
    ],
    notes: ['the same node client for both; ours goes through the proxy into envd and the sandbox’s quota-limited disk; without gzip'],
  }
}
