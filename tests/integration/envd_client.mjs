// A small Connect client for envd: plain node, no packages. JSON codec.
import http from 'node:http';
import net from 'node:net';

export const envelope = (flags, payload) => {
  const body = Buffer.from(payload);
  const head = Buffer.alloc(5);
  head[0] = flags;
  head.writeUInt32BE(body.length, 1);
  return Buffer.concat([head, body]);
};

export class Envd {
  constructor(port) {
    this.port = port;
    this.agent = new http.Agent({ keepAlive: true, maxSockets: Infinity });
  }

  request(method, path, { headers = {}, body, onResponse } = {}) {
    return new Promise((resolve, reject) => {
      const req = http.request({ host: '127.0.0.1', port: this.port, method, path, headers, agent: this.agent }, (res) => {
        if (onResponse) return resolve(onResponse(req, res));
        const parts = [];
        res.on('data', (d) => parts.push(d));
        res.on('end', () => resolve({ status: res.statusCode, headers: res.headers, body: Buffer.concat(parts) }));
        res.on('error', reject);
      });
      req.on('error', reject);
      req.end(body);
    });
  }

  // Unary call; throws an Error with .code for a Connect error.
  async call(method, msg, { user = 'root', headers = {} } = {}) {
    const res = await this.request('POST', `/process.Process/${method}`, {
      headers: { 'content-type': 'application/json', authorization: basic(user), ...headers },
      body: JSON.stringify(msg),
    });
    const out = JSON.parse(res.body.toString());
    if (res.status === 200) return out;
    throw Object.assign(new Error(out.message), { code: out.code, status: res.status });
  }

  // Server stream: an async iterator of messages; .close() cuts it, .pid after the start event.
  async stream(method, msg, { user = 'root', headers = {}, raw } = {}) {
    return this.request('POST', `/process.Process/${method}`, {
      headers: { 'content-type': 'application/connect+json', authorization: basic(user), ...headers },
      body: raw ?? envelope(0, JSON.stringify(msg)),
      onResponse: (req, res) => new Stream(req, res),
    });
  }

  async start(cmd, args = [], opts = {}) {
    const { stdin, pty, tag, envs, cwd, ...rest } = opts;
    const process = { cmd, args, ...(envs && { envs }), ...(cwd !== undefined && { cwd }) };
    const msg = { process, ...(stdin !== undefined && { stdin }), ...(pty && { pty }), ...(tag && { tag }) };
    const s = await this.stream('Start', msg, rest);
    await s.first();
    return s;
  }

  async run(script, opts = {}) {
    const s = await this.start('/bin/sh', ['-c', script], { stdin: false, ...opts });
    return s.wait();
  }
}

export const basic = (user) => 'Basic ' + Buffer.from(user + ':').toString('base64');

export class Stream {
  constructor(req, res) {
    this.req = req;
    this.res = res;
    this.status = res.statusCode;
    this.queue = [];
    this.buffer = Buffer.alloc(0);
    this.done = false;
    this.waiters = [];
    res.on('data', (d) => this.feed(d));
    res.on('end', () => this.finish());
    res.on('error', (e) => this.finish(e));
    res.on('close', () => this.finish());
  }

  feed(d) {
    this.parts ??= [];
    this.parts.push(d);
    this.have = (this.have ?? 0) + d.length;
    if (this.need && this.have < this.need) return;
    this.buffer = Buffer.concat([this.buffer, ...this.parts]);
    this.parts = [];
    while (this.buffer.length >= 5) {
      const n = this.buffer.readUInt32BE(1);
      if (this.buffer.length < 5 + n) break;
      const flags = this.buffer[0];
      const text = this.buffer.subarray(5, 5 + n).toString();
      this.buffer = this.buffer.subarray(5 + n);
      this.push({ flags, msg: JSON.parse(text) });
    }
    this.have = this.buffer.length;
  }

  push(item) {
    const w = this.waiters.shift();
    if (w) w(item);
    else this.queue.push(item);
  }

  finish(error) {
    if (this.done) return;
    this.done = true;
    this.error = error;
    for (const w of this.waiters.splice(0)) w(null);
  }

  next(ms = 20000) {
    if (this.queue.length) return Promise.resolve(this.queue.shift());
    if (this.done) return Promise.resolve(null);
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error('no message in time')), ms);
      this.waiters.push((v) => {
        clearTimeout(timer);
        resolve(v);
      });
    });
  }

  // The start event, or throws the end-stream's error.
  async first() {
    const item = await this.next();
    if (!item) throw new Error('the stream ended without a message');
    if (item.flags & 2) throw toError(item.msg);
    this.pid = item.msg.event.start.pid;
    return this.pid;
  }

  // Everything up to the end: {stdout, stderr, pty, end, missed}; throws a Connect error.
  async wait(ms = 30000) {
    const out = { pid: this.pid, stdout: [], stderr: [], pty: [], missed: 0, keepalives: 0, end: null };
    for (let item; (item = await this.next(ms)); ) {
      if (item.flags & 2) {
        if (item.msg.error) throw toError(item.msg);
        for (const k of ['stdout', 'stderr', 'pty']) out[k] = Buffer.concat(out[k]);
        return out;
      }
      const e = item.msg.event;
      if (e.missed) out.missed += e.missed;
      if (e.keepalive) out.keepalives++;
      if (e.end) out.end = e.end;
      for (const k of Object.keys(e.data ?? {})) out[k].push(Buffer.from(e.data[k], 'base64'));
    }
    throw new Error('the stream was cut');
  }

  // Reads until the output (stdout, stderr and pty together) contains text.
  async until(text, ms = 20000) {
    this.seen ??= '';
    while (!this.seen.includes(text)) {
      const item = await this.next(ms);
      if (!item || item.flags & 2) throw new Error(`ended before ${JSON.stringify(text)}; saw ${JSON.stringify(this.seen)}`);
      for (const v of Object.values(item.msg.event.data ?? {})) this.seen += Buffer.from(v, 'base64').toString();
    }
    return this.seen;
  }

  close() {
    this.req.destroy();
  }
}

const toError = (msg) => Object.assign(new Error(msg.error.message), { code: msg.error.code });

// Sends raw bytes on a fresh connection and returns everything that comes back until it closes or ms pass.
export function raw(port, bytes, ms = 1000) {
  return new Promise((resolve) => {
    const parts = [];
    const s = net.connect(port, '127.0.0.1', () => s.write(bytes));
    const end = () => {
      s.destroy();
      resolve(Buffer.concat(parts).toString('latin1'));
    };
    s.on('data', (d) => parts.push(d));
    s.on('close', end);
    s.on('error', () => {});
    setTimeout(end, ms);
  });
}
