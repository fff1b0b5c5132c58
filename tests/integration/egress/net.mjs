// A host and an internet, each a network namespace that this process makes and removes. The test itself runs in the
// host's (run() starts it again there).
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import readline from 'node:readline';
import { fileURLToPath } from 'node:url';

const here = path.dirname(fileURLToPath(import.meta.url));
const INNER = 'HF_L7_NET';

function ip(...args) {
  execFileSync('ip', args, { stdio: ['ignore', 'ignore', 'inherit'] });
}

// The namespaces <id>-h and <id>-o, joined by a wire; what is behind o is reached by addresses of the test internet.
export function makeNets(id) {
  const [h, o] = [`${id}-h`, `${id}-o`];
  ip('netns', 'add', h);
  ip('netns', 'add', o);
  ip('-n', h, 'link', 'add', 'up0', 'type', 'veth', 'peer', 'name', 'down0', 'netns', o);
  for (const [ns, dev, a] of [[h, 'up0', '1'], [o, 'down0', '2']]) {
    ip('-n', ns, 'addr', 'add', `192.0.2.${a}/24`, 'dev', dev);
    ip('-n', ns, '-6', 'addr', 'add', `2001:db8::${a}/64`, 'dev', dev, 'nodad');
    ip('-n', ns, 'link', 'set', 'lo', 'up');
    ip('-n', ns, 'link', 'set', dev, 'up');
  }
  for (const net4 of ['203.0.113.0/24', '198.51.100.0/24', '10.20.0.0/16']) {
    ip('-n', h, 'route', 'add', net4, 'via', '192.0.2.2');
    ip('-n', o, 'route', 'add', 'local', net4, 'dev', 'lo');
  }
  ip('-n', h, '-6', 'route', 'add', '2001:db8:1::/48', 'via', '2001:db8::2');
  ip('-n', o, '-6', 'addr', 'add', '2001:db8:1::10/128', 'dev', 'lo', 'nodad');
}

export function removeNets(id) {
  for (const ns of [`${id}-h`, `${id}-o`]) spawnSync('ip', ['netns', 'del', ns], { stdio: 'ignore' });
}

// In the outer process: makes the namespaces, runs this script again in the host's one, removes them, exits.
export function run(script) {
  if (process.env[INNER]) return process.env[INNER];
  if (process.getuid() !== 0) {
    console.log('needs root: it makes network namespaces');
    process.exit(77);
  }
  const id = `hf-egress-${process.pid}`;
  let status = 1;
  try {
    makeNets(id);
    const r = spawnSync('nsenter', [`--net=/run/netns/${id}-h`, process.execPath, script, ...process.argv.slice(2)], {
      stdio: 'inherit', env: { ...process.env, [INNER]: id },
    });
    status = r.status ?? 1;
  } finally {
    removeNets(id);
  }
  process.exit(status);
}

export function certificates(host, dir) {
  execFileSync(host, ['--ca', dir]);
  execFileSync(host, ['--leaf', dir, 'api.test', 'other.test', '*.wild.test', 'listed.test', '203.0.113.10', '203.0.113.11']);
  execFileSync(host, ['--leaf', dir, 'wrong.test']);
  const ssl = (...args) => execFileSync('openssl', args, { stdio: 'ignore' });
  const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-subj', '/CN=bad.test',
    '-addext', 'subjectAltName=DNS:bad.test'];
  ssl('req', '-x509', ...key, '-keyout', `${dir}/selfsigned.key`, '-out', `${dir}/selfsigned.pem`, '-days', '3');
  ssl('req', ...key, '-keyout', `${dir}/expired.key`, '-out', `${dir}/expired.csr`);
  ssl('x509', '-req', '-copy_extensions', 'copyall', '-in', `${dir}/expired.csr`, '-CA', `${dir}/ca.pem`, '-CAkey',
    `${dir}/ca.key`, '-days', '-1', '-out', `${dir}/expired.pem`);
}

export async function origins(id, dir) {
  const p = spawn('nsenter', [`--net=/run/netns/${id}-o`, process.execPath, path.join(here, 'origins.mjs'), dir], {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
  process.on('exit', () => p.kill('SIGKILL'));
  let failed;
  p.once('exit', () => failed?.(new Error('the origins ended')));
  const next = () => new Promise((resolve, reject) => {
    failed = reject;
    p.once('message', resolve);
  });
  await next();
  return {
    async log() {
      const answer = next();
      p.send('log');
      return (await answer).log;
    },
    end: () => p.kill('SIGKILL'),
  };
}

// The program l7-host: the proxy with a fabric and a resolver that do what they are told.
export class Proxy {
  // before: a command in front of it, as nsenter
  constructor(binary, ca, before = []) {
    const argv = [...before, binary, ca];
    this.proc = spawn(argv[0], argv.slice(1), { stdio: ['pipe', 'pipe', 'pipe'] });
    this.events = [];
    this.waiting = [];
    this.output = '';
    this.port = 16000; // up to 32767: above the listener's, below those that the kernel picks
    process.on('exit', () => this.proc.kill('SIGKILL'));
    this.proc.stderr.on('data', (d) => {
      this.output += d;
      if (process.env.HF_L7_VERBOSE) process.stderr.write(d);
    });
    this.exited = new Promise((resolve) => this.proc.on('exit', (code, sig) => resolve(code ?? sig)));
    readline.createInterface({ input: this.proc.stdout }).on('line', (line) => {
      this.output += `${line}\n`;
      const e = JSON.parse(line);
      if (e.event === 'done') this.waiting.shift()(e);
      else this.events.push(e);
    });
  }

  async tell(command) {
    const answer = new Promise((resolve) => this.waiting.push(resolve));
    this.proc.stdin.write(`${JSON.stringify(command)}\n`);
    const e = await Promise.race([answer, this.exited.then((c) => { throw new Error(`l7-host ended: ${c}\n${this.output.slice(-4000)}`); })]);
    if (e.r < 0) throw new Error(`${command.do}: ${e.r} ${e.error}`);
  }

  async box(addr, network, more = {}) {
    await this.tell({ do: 'box', addr, sandbox: `box-${addr}`, tenant: 'acme', network, ...more });
  }

  async stats(addr) {
    await this.tell({ do: 'stats', addr });
    return this.events.filter((e) => e.event === 'stats').pop();
  }

  // Records and denials since the last call, once `n` of them came.
  async records(n = 1) {
    for (let i = 0; i < 100; i++) {
      const got = this.events.filter((e) => e.event === 'request' || e.event === 'denial');
      if (got.length >= n) {
        this.events = [];
        return got;
      }
      await new Promise((r) => setTimeout(r, 20));
    }
    throw new Error(`no ${n} records: ${JSON.stringify(this.events)}`);
  }

  // A TCP connection of the box at `from` that was redirected on its way to addr:port.
  async connect(from, addr, port) {
    const source = this.port;
    this.port = this.port === 32767 ? 16000 : this.port + 1;
    await this.tell({ do: 'orig', source, addr, port });
    const s = net.connect({ host: '127.0.0.1', port: 15001, localAddress: from, localPort: source, allowHalfOpen: true });
    s.setNoDelay(true);
    s.on('error', () => {});
    await new Promise((resolve) => {
      s.once('connect', resolve);
      s.once('error', resolve); // refused at once: whoever reads will see it
    });
    return s;
  }

  async end() {
    this.proc.stdin.end();
    return this.exited;
  }
}

export function scratch() {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'hf-egress-'));
  process.on('exit', () => fs.rmSync(dir, { recursive: true, force: true }));
  return dir;
}
