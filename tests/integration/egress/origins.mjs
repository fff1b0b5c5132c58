// The internet of the L7 tests: runs inside its own network namespace, told what to do by the test (process.send).
import fs from 'node:fs';
import http from 'node:http';
import http2 from 'node:http2';
import net from 'node:net';
import tls from 'node:tls';
import crypto from 'node:crypto';

const dir = process.argv[2];
const pem = (name) => ({ key: fs.readFileSync(`${dir}/${name}.key`), cert: fs.readFileSync(`${dir}/${name}.pem`) });
const log = []; // what reached the origins
const note = (entry) => log.push(entry);
process.on('message', (m) => {
  if (m === 'log') process.send({ log: log.splice(0) });
});

const up = [];
const listen = (server, host, port) => up.push(new Promise((resolve, reject) => {
  server.on('error', reject);
  server.listen(port, host, resolve);
}));

// Says what it was asked, as JSON.
function echo(req, res) {
  const parts = [];
  req.on('data', (d) => parts.push(d));
  req.on('error', () => {});
  req.on('end', () => {
    const body = Buffer.concat(parts);
    note({ at: req.socket.localAddress, url: req.url, headers: req.headers, body: body.length });
    const url = req.url.replace(/^http:\/\/[^/]*/, '');
    if (url.startsWith('/redirect')) {
      res.writeHead(302, { location: 'https://denied.test/' });
      return res.end();
    }
    if (url.startsWith('/big')) {
      res.writeHead(200, { 'content-type': 'application/octet-stream' });
      return res.end(Buffer.alloc(Number(url.split('=')[1]), 'x'));
    }
    if (url.startsWith('/trailers')) {
      res.writeHead(200, { 'content-type': 'application/grpc', trailer: 'grpc-status' });
      res.write('message');
      res.addTrailers({ 'grpc-status': '0' });
      return res.end();
    }
    if (url.startsWith('/slow')) {
      res.writeHead(200);
      res.write('begun');
      return undefined; // never ends
    }
    res.writeHead(200, { 'content-type': 'application/json', 'x-origin': 'yes' });
    return res.end(JSON.stringify({
      version: req.httpVersion, method: req.method, url: req.url, headers: req.headers,
      bytes: body.length, sha: crypto.createHash('sha256').update(body).digest('hex'),
    }));
  });
}

// Speaks WebSocket as far as the handshake; then it is an echo.
function upgrade(req, socket) {
  note({ at: socket.localAddress, upgrade: req.url, headers: req.headers });
  const accept = crypto.createHash('sha1').update(`${req.headers['sec-websocket-key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`)
    .digest('base64');
  socket.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`);
  socket.on('error', () => {});
  socket.pipe(socket);
}

function secure(host, port, name) {
  const s = http2.createSecureServer({ ...pem(name), allowHTTP1: true }, echo);
  s.on('upgrade', upgrade);
  s.on('secureConnection', (c) => note({ at: host, tls: c.servername, alpn: c.alpnProtocol }));
  listen(s, host, port);
}

secure('203.0.113.10', 443, 'api.test');
secure('203.0.113.11', 443, 'api.test');
secure('203.0.113.10', 8443, 'api.test');
secure('2001:db8:1::10', 443, 'api.test');
secure('203.0.113.31', 443, 'selfsigned');
secure('203.0.113.32', 443, 'wrong.test');
secure('203.0.113.33', 443, 'expired');
secure('10.20.0.5', 443, 'api.test');

// Speaks HTTP/1.1 only, so that ALPN has something to settle.
const h1 = tls.createServer({ ...pem('api.test'), ALPNProtocols: ['http/1.1'] }, (c) => inner.emit('connection', c));
const inner = http.createServer(echo);
inner.on('upgrade', upgrade);
listen(h1, '203.0.113.12', 443);

// Plain HTTP that keeps every byte it got.
for (const port of [80, 8080]) {
  listen(net.createServer((c) => {
    const entry = { at: '203.0.113.20', raw: '' };
    note(entry);
    c.on('error', () => {});
    c.on('data', (d) => {
      entry.raw += d.toString('latin1');
      const n = d.toString('latin1').split('\r\n\r\n').length - 1;
      for (let i = 0; i < n; i++) c.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok');
    });
  }), '203.0.113.20', port);
}
const plain = http.createServer(echo);
plain.on('upgrade', upgrade);
listen(plain, '203.0.113.10', 80);
listen(http2.createServer(echo), '203.0.113.21', 80);

// A server that speaks first, at an ordinary port and where HTTPS is expected.
for (const port of [25, 443]) {
  listen(net.createServer((c) => {
    note({ at: '203.0.113.40', banner: port });
    c.on('error', () => {});
    c.write('220 banner\r\n');
    c.pipe(c);
  }), '203.0.113.40', port);
}
// One that keeps no connection for long, and doesn't say so.
listen(net.createServer((c) => {
  c.on('error', () => {});
  c.once('data', () => c.end('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'));
}), '203.0.113.42', 80);
// One that waits for its client, and then echoes.
listen(net.createServer((c) => {
  c.on('error', () => {});
  c.on('data', (d) => {
    note({ at: '203.0.113.41', raw: d.toString('latin1') });
    c.write(d);
  });
}), '203.0.113.41', 9000);

// SOCKS5 with a password, and HTTP CONNECT; both go to api.test's origin whatever they are asked for.
function onward(c, before) {
  const o = net.connect(443, '203.0.113.10', () => {
    c.write(before);
    c.pipe(o).pipe(c);
  });
  o.on('error', () => c.destroy());
}
listen(net.createServer((c) => {
  let got = Buffer.alloc(0);
  let step = 0;
  c.on('error', () => {});
  c.on('data', function more(d) {
    got = Buffer.concat([got, d]);
    if (step === 0 && got.length >= 2 + got[1]) {
      got = got.subarray(2 + got[1]);
      step = 1;
      c.write(Buffer.from([5, 2]));
    }
    if (step === 1 && got.length > 2 && got.length >= 3 + got[1] + got[2 + got[1]]) {
      const user = got.subarray(2, 2 + got[1]).toString();
      const password = got.subarray(3 + got[1], 3 + got[1] + got[2 + got[1]]).toString();
      got = got.subarray(3 + got[1] + got[2 + got[1]]);
      step = 2;
      note({ at: 'socks', user, password });
      c.write(Buffer.from([1, password === 'right' ? 0 : 1]));
    }
    if (step === 2 && got.length > 5) {
      const name = got[3] === 3;
      const n = name ? 5 + got[4] : got[3] === 1 ? 8 : 20;
      if (got.length < n + 2) return;
      const to = name ? got.subarray(5, n).toString() : got.subarray(4, n).join('.');
      note({ at: 'socks', to, port: got.readUInt16BE(n) });
      c.off('data', more);
      onward(c, Buffer.from([5, 0, 0, 1, 0, 0, 0, 0, 0, 0]));
    }
  });
}), '198.51.100.8', 1080);
const proxy = http.createServer((req, res) => res.writeHead(400).end());
proxy.on('connect', (req, socket) => {
  note({ at: 'connect', to: req.url, auth: req.headers['proxy-authorization'] });
  socket.on('error', () => {});
  onward(socket, 'HTTP/1.1 200 Connection established\r\n\r\n');
});
listen(proxy, '198.51.100.8', 3128);
listen(http.createServer((req, res) => res.end()).on('connect', (...a) => proxy.emit('connect', ...a)), '10.20.0.8', 3128);

await Promise.all(up);
process.send({ ready: true });
