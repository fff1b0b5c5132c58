// End-to-end test of envd's /files: node envd_files_test.mjs PATH-OF-HOLDFAST-ENVD [name filter]
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import crypto from 'node:crypto';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import zlib from 'node:zlib';
import { raw } from './envd_client.mjs';
import { at, box, child, ctl, dir, envd, form, get, id, is, json, part, port, post, put, q, refused, rpc, run, sleep, test } from './envd_box.mjs';

// ---- POST ----

test('octet-stream: sizes around every buffer limit', async () => {
  for (const n of [0, 1, 16383, 16384, 18000, 65535, 65536, 65537, 262143, 262144, 262145, 1 << 20, (5 << 20) + 3]) {
    const body = crypto.randomBytes(n);
    const res = await put(at(`size-${n}`), body);
    assert.equal(res.status, 200);
    assert.deepEqual(json(res), [{ path: at(`size-${n}`), name: `size-${n}`, type: 'file' }]);
    assert.ok(fs.readFileSync(at(`size-${n}`)).equals(body), `size ${n}`);
    const back = await get(at(`size-${n}`));
    assert.equal(back.status, 200);
    assert.equal(back.headers['content-length'], String(n));
    assert.ok(back.body.equals(body), `read of ${n}`);
  }
});

test('chunked uploads in odd pieces, many at once', async () => {
  await Promise.all(
    Array.from({ length: 12 }, async (_, i) => {
      const body = crypto.randomBytes(700001 + i);
      const res = await new Promise((resolve, reject) => {
        const req = http.request(
          { host: '127.0.0.1', port, method: 'POST', path: q({ path: at('par', `f${i}`), username: 'root' }), headers: { 'content-type': 'application/octet-stream' }, agent: envd.agent },
          (r) => r.resume().on('end', () => resolve(r)),
        );
        req.on('error', reject);
        (async () => {
          for (let pos = 0; pos < body.length; pos += 4099 + i) if (!req.write(body.subarray(pos, pos + 4099 + i))) await new Promise((r) => req.once('drain', r));
          req.end();
        })();
      });
      assert.equal(res.statusCode, 200);
      assert.ok(fs.readFileSync(at('par', `f${i}`)).equals(body));
    }),
  );
});

test('new files and directories belong to the user, 0644 and 0755', async () => {
  const res = await put(at('own', 'a', 'b', 'f'), 'x', {}, { username: 'nobody' });
  assert.equal(res.status, 200);
  const st = fs.statSync(at('own', 'a', 'b', 'f'));
  assert.equal(st.uid, id('nobody'));
  assert.equal(st.mode & 0o7777, 0o644);
  for (const d of [at('own'), at('own', 'a'), at('own', 'a', 'b')]) {
    assert.equal(fs.statSync(d).uid, id('nobody'));
    assert.equal(fs.statSync(d).mode & 0o7777, 0o755);
  }
  assert.equal(fs.statSync(box).uid, 0);
});

test('an existing file keeps its inode and mode', async () => {
  fs.writeFileSync(at('old'), 'a long old content');
  fs.chmodSync(at('old'), 0o755);
  const before = fs.statSync(at('old')).ino;
  assert.equal((await put(at('old'), 'new')).status, 200);
  assert.equal(fs.readFileSync(at('old'), 'utf8'), 'new');
  assert.equal(fs.statSync(at('old')).ino, before);
  assert.equal(fs.statSync(at('old')).mode & 0o777, 0o755);
});

test('multipart: several files, paths of the part names, ignored parts', async () => {
  const big = crypto.randomBytes(1 << 20);
  const res = await post(form(part('file', at('m/a.txt'), 'one'), part('note', undefined, 'ignored'), part('file', at('m/sub/b'), big), part('file', at('m/empty'), '')));
  assert.equal(res.status, 200);
  assert.deepEqual(json(res).map((e) => e.path), [at('m/a.txt'), at('m/sub/b'), at('m/empty')]);
  assert.equal(fs.readFileSync(at('m/a.txt'), 'utf8'), 'one');
  assert.ok(fs.readFileSync(at('m/sub/b')).equals(big));
  assert.equal(fs.statSync(at('m/empty')).size, 0);
  assert.deepEqual(json(await post(form(part('other', 'x', 'y')))), []);
});

test('multipart: query path wins; a second part is refused', async () => {
  const one = await post(form(part('file', 'whatever', 'x')), { path: at('q1') });
  assert.equal(json(one)[0].path, at('q1'));
  refused(await post(form(part('file', 'a', 'x'), part('file', 'b', 'y')), { path: at('q2') }), 400, /you cannot upload multiple files to the same path/);
  assert.equal(fs.readFileSync(at('q2'), 'utf8'), 'x');
  refused(await post(form(part('file', undefined, 'x'))), 400, /filename/);
});

test('multipart: relative names are below the home directory', async () => {
  const name = `.hf-files-${process.pid}`;
  const res = await post(form(part('file', `${name}/x/../y`, 'z')), { username: 'root' });
  assert.equal(json(res)[0].path, `${os.userInfo().homedir}/${name}/y`);
  assert.equal((await get(`~/${name}/y`)).body.toString(), 'z');
  await rpc('Remove', { path: name });
  assert.ok(!fs.existsSync(path.join(os.userInfo().homedir, name)));
});

test('multipart: malformed bodies and names', async () => {
  refused(await post('--BND\r\nno colon\r\n\r\n--BND--'), 400, /header line/);
  refused(await post('--BND\r\nContent-Disposition: form-data; name="file"; filename="' + at('x') + '"\r\n\r\ncut'), 400, /last boundary/);
  assert.ok(!fs.existsSync(at('x')), 'a cut upload leaves no new file');
  refused(await post(form(part('file', at('nul\0x'), 'y'))), 400, /header line/);
  refused(await post('x', {}, { 'content-type': 'multipart/form-data' }), 400, /boundary/);
  refused(await post('x', {}, { 'content-type': 'text/plain' }), 400, /unsupported content type: text\/plain/);
  refused(await envd.request('POST', '/files?username=root', { headers: { 'content-type': 'application/octet-stream' }, body: 'x' }), 400, /path query parameter is required/);
  refused(await post('--BND\r\n' + 'X: ' + 'v'.repeat(20000) + '\r\n\r\n--BND--'), 400, /longer than/);
  refused(await post('--BND\r\n' + 'X: v\r\n'.repeat(40) + '\r\n\r\n--BND--'), 400, /header lines/);
});

test('gzip bodies, whole and broken', async () => {
  const text = 'text '.repeat(300000);
  const gz = zlib.gzipSync(text);
  assert.equal((await put(at('gz'), gz, { 'content-encoding': 'gzip' })).status, 200);
  assert.equal(fs.readFileSync(at('gz'), 'utf8'), text);
  assert.equal((await put(at('gz2'), Buffer.concat([gz, zlib.gzipSync('more')]), { 'content-encoding': 'gzip' })).status, 200);
  assert.equal(fs.readFileSync(at('gz2'), 'utf8'), text + 'more');
  const multi = zlib.gzipSync(form(part('file', at('gz3'), text)));
  assert.equal(json(await post(multi, {}, { 'content-encoding': 'gzip' }))[0].path, at('gz3'));
  assert.equal(fs.readFileSync(at('gz3'), 'utf8'), text);
  refused(await put(at('bad1'), 'not gzip', { 'content-encoding': 'gzip' }), 400, /^error decompressing request body: /);
  refused(await put(at('bad2'), gz.subarray(0, gz.length - 9), { 'content-encoding': 'gzip' }), 400, /unexpected EOF/);
  refused(await put(at('bad3'), 'x', { 'content-encoding': 'br' }), 400, /^error decompressing request body: unsupported Content-Encoding: br/);
  assert.ok(!fs.existsSync(at('bad1')) && !fs.existsSync(at('bad2')));
});

test('a refused upload is answered, however much the client sends', async () => {
  const flood = (n, headers) =>
    new Promise((resolve, reject) => {
      const req = http.request({ host: '127.0.0.1', port, method: 'POST', path: q({ path: at('refused'), username: 'root' }), headers }, (res) => {
        const parts = [];
        res.on('data', (d) => parts.push(d));
        res.on('end', () => resolve({ status: res.statusCode, headers: res.headers, body: Buffer.concat(parts), sent }));
      });
      let sent = 0;
      req.on('error', reject);
      const chunk = Buffer.alloc(1 << 20);
      (async () => {
        while (sent < n && !req.destroyed && !req.res) {
          sent += chunk.length;
          if (!req.write(chunk)) await Promise.race([new Promise((r) => req.once('drain', r)), sleep(1000)]);
        }
        req.end();
      })();
    });
  const res = await flood(40 << 20, { 'content-type': 'text/plain' });
  refused(res, 400, /unsupported content type/);
  assert.equal(res.sent, 40 << 20, 'heard out');
  const waiting = await raw(port, 'POST /files?path=x&username=root HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n', 300);
  assert.match(waiting, /^HTTP\/1.1 400 /);
  const huge = await raw(port, 'POST /files?path=x&username=root HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 67108865\r\n\r\n', 300);
  assert.match(huge, /^HTTP\/1.1 400 /);
});

test('PUT and HEAD', async () => {
  const res = await envd.request('PUT', q({ path: at('put'), username: 'root' }), { body: 'hello' });
  assert.equal(res.status, 200);
  assert.equal(fs.readFileSync(at('put'), 'utf8'), 'hello');
  const head = await envd.request('HEAD', q({ path: at('put'), username: 'root' }));
  assert.equal(head.headers['content-length'], '5');
  assert.equal(head.body.length, 0);
  assert.equal((await envd.request('DELETE', q({ path: at('put') }))).status, 405);
});

test('special files, directories, magic links: refused, never a hang', async () => {
  execFileSync('mkfifo', [at('fifo')]);
  refused(await put(at('fifo'), 'x'), 400, /not a regular file/);
  refused(await get(at('fifo')), 400, /not a regular file/);
  refused(await put('/dev/full', 'x'), 400, /not a regular file/);
  refused(await get('/dev/zero'), 400, /not a regular file/);
  refused(await put(box, 'x'), 400, /^path is a directory: /);
  refused(await get(box), 400, /^path '.*' is a directory$/);
  fs.symlinkSync('/proc/self/fd/0', at('magic'));
  refused(await put('/proc/self/fd/1', 'x'), 400);
  refused(await get('/proc/self/exe'), 400, /only the kernel/);
  refused(await put(at('put', 'below-a-file'), 'x'), 400, /not a directory/);
  refused(await put(at('n'.repeat(256)), 'x'), 400, /File name too long/);
});

test('symbolic links: followed, also to nothing', async () => {
  fs.mkdirSync(at('real'));
  fs.symlinkSync(at('real'), at('dirlink'));
  fs.symlinkSync('real/target', at('dangling'));
  fs.symlinkSync(at('loop'), at('loop'));
  assert.equal((await put(at('dirlink', 'new', 'f'), 'via link')).status, 200);
  assert.equal(fs.readFileSync(at('real', 'new', 'f'), 'utf8'), 'via link');
  assert.equal((await put(at('dangling'), 'made')).status, 200);
  assert.equal(fs.readFileSync(at('real', 'target'), 'utf8'), 'made');
  assert.ok(fs.lstatSync(at('dangling')).isSymbolicLink());
  refused(await put(at('loop'), 'x'), 400);
});

test('metadata: stored, returned, replaced, checked', async () => {
  const res = await put(at('meta'), 'x', { 'X-Metadata-Author': 'Ann', 'x-metadata-k2': 'v 2' });
  assert.deepEqual(json(res)[0].metadata, { author: 'Ann', k2: 'v 2' });
  assert.deepEqual((await rpc('Stat', { path: at('meta') })).entry.metadata, { author: 'Ann', k2: 'v 2' });
  await put(at('meta'), 'x', { 'x-metadata-k3': 'c' });
  assert.deepEqual((await rpc('Stat', { path: at('meta') })).entry.metadata, { k3: 'c' });
  const listed = (await rpc('ListDir', { path: box })).entries.find((e) => e.name === 'meta');
  assert.deepEqual(listed.metadata, { k3: 'c' });
  const moved = await rpc('Move', { source: at('meta'), destination: at('meta2') });
  assert.deepEqual(moved.entry.metadata, { k3: 'c' });
  await put(at('meta2'), 'y');
  assert.equal((await rpc('Stat', { path: at('meta2') })).entry.metadata, undefined);
  assert.equal((await put(at('meta'), 'x', { ['x-metadata-' + 'k'.repeat(246)]: 'v' })).status, 200);
  refused(await put(at('meta'), 'x', { ['x-metadata-' + 'k'.repeat(247)]: 'v' }), 400, /^invalid metadata: /);
  refused(await put(at('meta'), 'x', { 'x-metadata-k': '\xe9' }), 400, /^invalid metadata: /);
  refused(await put(at('meta'), 'x', { 'x-metadata-k': 'v'.repeat(4096) }), 400, /^invalid metadata: /);
});

test('a full disk: 507 before and during', async () => {
  const disk = at('small');
  fs.mkdirSync(disk);
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=2m', 'tmpfs', disk]);
  try {
    fs.writeFileSync(path.join(disk, 'keep'), 'precious');
    const body = crypto.randomBytes(6 << 20);
    const before = await put(path.join(disk, 'keep'), body);
    refused(before, 507, /^not enough disk space available/);
    assert.equal(fs.readFileSync(path.join(disk, 'keep'), 'utf8'), 'precious', 'refused before the old content was touched');
    const during = await put(path.join(disk, 'big'), body, { 'transfer-encoding': 'chunked' });
    refused(during, 507, /^not enough disk space available$/);
    assert.ok(!fs.existsSync(path.join(disk, 'big')), 'the part is taken away');
    assert.equal((await put(path.join(disk, 'ok'), 'fits')).status, 200);
    const joined = await envd.request('POST', '/files/compose', { body: JSON.stringify({ source_paths: [at(`size-${(5 << 20) + 3}`)], destination: path.join(disk, 'joined'), username: 'root' }) });
    refused(joined, 507, /^not enough disk space available$/);
    assert.deepEqual(fs.readdirSync(disk).sort(), ['keep', 'ok']);
  } finally {
    execFileSync('umount', [disk]);
  }
});

test('a client that goes away: no new file stays', async () => {
  await new Promise((resolve) => {
    const req = http.request({ host: '127.0.0.1', port, method: 'POST', path: q({ path: at('gone'), username: 'root' }), headers: { 'content-type': 'application/octet-stream', 'content-length': 10000000 } });
    req.on('error', resolve);
    req.write(crypto.randomBytes(3000000), () => setTimeout(() => req.destroy(), 100));
  });
  for (let i = 0; i < 50 && fs.existsSync(at('gone')); i++) await sleep(20);
  assert.ok(!fs.existsSync(at('gone')));
});

test('strange names survive', async () => {
  for (const name of ['new\nline', 'quo"te', "a'b", 'back\\slash', ' spaces ', 'tab\t', '%41', '+plus', 'ü-é-漢字', 'n'.repeat(255), '-rf', '#?&=;', '..hidden', 'cr\rlf\n']) {
    assert.equal((await put(at('names', name), name)).status, 200, JSON.stringify(name));
    assert.equal(fs.readFileSync(at('names', name), 'utf8'), name);
    assert.equal((await get(at('names', name))).body.toString(), name);
    assert.equal((await rpc('Stat', { path: at('names', name) })).entry.name, name);
  }
  const listed = (await rpc('ListDir', { path: at('names') })).entries.map((e) => e.name);
  assert.deepEqual(listed.slice().sort(), fs.readdirSync(at('names')).sort());
  // A form encodes them the way browsers do.
  const res = await post(form(part('file', at('names', 'form%0Aname%22'), 'x')));
  assert.equal(json(res)[0].name, 'form\nname"');
});

test('names that are not UTF-8: base64 beside replacement characters', async () => {
  const name = Buffer.from([0x61, 0xff, 0xfe, 0x62]);
  const full = Buffer.concat([Buffer.from(at('names') + '/'), name]);
  const res = await envd.request('POST', `/files?username=root&path=${encodeURIComponent(at('names'))}/a%ff%feb`, { headers: { 'content-type': 'application/octet-stream' }, body: 'bytes' });
  assert.equal(res.status, 200);
  assert.equal(json(res)[0].nameBase64, name.toString('base64'));
  assert.equal(fs.readFileSync(full, 'utf8'), 'bytes');
  const entry = (await rpc('ListDir', { path: at('names') })).entries.find((e) => e.nameBase64);
  assert.equal(entry.name, 'a\ufffd\ufffdb');
  assert.equal(entry.pathBase64, full.toString('base64'));
  assert.equal((await rpc('Stat', { pathBase64: entry.pathBase64 })).entry.size, '5');
  await rpc('Move', { sourceBase64: entry.pathBase64, destination: at('names', 'renamed') });
  assert.equal(fs.readFileSync(at('names', 'renamed'), 'utf8'), 'bytes');
});

test('bad queries', async () => {
  refused(await envd.request('GET', '/files?path=%00&username=root'), 400, /NUL/);
  refused(await envd.request('GET', '/files?path=%zz&username=root'), 400, /malformed/);
  refused(await get('/' + 'd/'.repeat(3000)), 400, /longer than/);
  refused(await get('~nobody/x'), 400, /cannot expand user-specific home dir/);
  refused(await get('/x', {}, { username: 'no-such-user' }), 401, /^error looking up user 'no-such-user': /);
  refused(await get(at('missing')), 404, new RegExp(`^path '${at('missing')}' does not exist$`));
  assert.equal((await get(at('names', '..', 'put'))).body.toString(), 'hello');
  assert.equal((await get('/../../..' + at('put'))).body.toString(), 'hello');
});

// ---- GET ----

test('headers, conditions and ranges', async () => {
  fs.writeFileSync(at('r.txt'), '0123456789');
  fs.utimesSync(at('r.txt'), 1700000000, 1700000000);
  const full = await get(at('r.txt'));
  assert.equal(full.headers['content-type'], 'text/plain; charset=utf-8');
  assert.equal(full.headers['content-disposition'], 'inline; filename=r.txt');
  assert.equal(full.headers['last-modified'], 'Tue, 14 Nov 2023 22:13:20 GMT');
  assert.equal(full.headers['accept-ranges'], 'bytes');
  assert.equal(full.headers.vary, 'Accept-Encoding');
  const etag = full.headers.etag;
  const cases = [
    ['bytes=0-3', '0123', 'bytes 0-3/10'],
    ['bytes=7-', '789', 'bytes 7-9/10'],
    ['bytes=-4', '6789', 'bytes 6-9/10'],
    ['bytes=-99', '0123456789', 'bytes 0-9/10'],
    ['bytes=9-99', '9', 'bytes 9-9/10'],
  ];
  for (const [range, want, header] of cases) {
    const r = await get(at('r.txt'), { range });
    assert.equal(r.status, 206, range);
    assert.equal(r.body.toString(), want);
    assert.equal(r.headers['content-range'], header);
  }
  for (const range of ['bytes=0-1,3-4', 'lines=1-2', 'bytes=x', 'bytes=5-2', 'bytes=-']) assert.equal((await get(at('r.txt'), { range })).body.toString(), '0123456789', range);
  for (const range of ['bytes=10-', 'bytes=99-100', 'bytes=-0']) {
    const r = await get(at('r.txt'), { range });
    refused(r, 416);
    assert.equal(r.headers['content-range'], 'bytes */10');
  }
  assert.equal((await get(at('r.txt'), { 'if-none-match': etag })).status, 304);
  assert.equal((await get(at('r.txt'), { 'if-none-match': `"x", W/${etag}` })).status, 304);
  assert.equal((await get(at('r.txt'), { 'if-none-match': '"x"', 'if-modified-since': full.headers['last-modified'] })).status, 200);
  assert.equal((await get(at('r.txt'), { 'if-modified-since': full.headers['last-modified'] })).status, 304);
  assert.equal((await get(at('r.txt'), { 'if-modified-since': 'Tue, 14 Nov 2023 22:13:19 GMT' })).status, 200);
  assert.equal((await get(at('r.txt'), { range: 'bytes=0-0', 'if-range': etag })).status, 206);
  assert.equal((await get(at('r.txt'), { range: 'bytes=0-0', 'if-range': '"old"' })).status, 200);
  const big = crypto.randomBytes(3 << 20);
  fs.writeFileSync(at('big.bin'), big);
  const r = await get(at('big.bin'), { range: 'bytes=300000-2000000', 'accept-encoding': 'gzip' });
  assert.equal(r.headers['content-encoding'], undefined);
  assert.ok(r.body.equals(big.subarray(300000, 2000001)));
});

test('content types and dispositions', async () => {
  const png = Buffer.from('89504e470d0a1a0a', 'hex');
  for (const [name, content, type, disposition] of [
    ['t.html', '', 'text/html; charset=utf-8', 'inline; filename=t.html'],
    ['t.JSON', '{}', 'application/json', 'inline; filename=t.JSON'],
    ['noext', png, 'image/png', 'inline; filename=noext'],
    ['bin', Buffer.from([0, 1, 2]), 'application/octet-stream', 'inline; filename=bin'],
    ['a b"c', 'text', 'text/plain; charset=utf-8', 'inline; filename="a b\\"c"'],
    ['ü\n', 'text', 'text/plain; charset=utf-8', "inline; filename*=utf-8''%C3%BC%0A"],
  ]) {
    fs.writeFileSync(at(name), content);
    const r = await get(at(name));
    assert.equal(r.headers['content-type'], type, name);
    assert.equal(r.headers['content-disposition'], disposition);
    const part = content.length ? await get(at(name), { range: 'bytes=0-0' }) : r;
    assert.equal(part.headers['content-type'], type, name);
  }
});

test('empty files have Content-Length 0', async () => {
  fs.writeFileSync(at('e'), '');
  for (const enc of ['gzip', 'gzip, deflate', 'identity']) {
    const r = await get(at('e'), { 'accept-encoding': enc });
    assert.equal(r.status, 200);
    assert.equal(r.headers['content-length'], '0');
    assert.equal(r.headers['content-encoding'], undefined);
  }
});

test('gzip answers', async () => {
  const text = Buffer.from('compressible '.repeat(200000));
  fs.writeFileSync(at('c.txt'), text);
  const gz = await get(at('c.txt'), { 'accept-encoding': 'gzip' });
  assert.equal(gz.headers['content-encoding'], 'gzip');
  assert.equal(gz.headers['content-type'], 'text/plain; charset=utf-8');
  assert.ok(zlib.gunzipSync(gz.body).equals(text));
  assert.ok(gz.body.length < text.length / 10);
  const fetchLike = await get(at('c.txt'), { 'accept-encoding': 'gzip, deflate' });
  assert.equal(fetchLike.headers['content-encoding'], 'gzip');
  assert.ok(zlib.gunzipSync(fetchLike.body).equals(text));
  const noise = await get(at('big.bin'), { 'accept-encoding': 'gzip, deflate' });
  assert.equal(noise.headers['content-encoding'], undefined, 'what does not shrink is sent as it is');
  fs.writeFileSync(at('c5.txt'), Buffer.alloc((4 << 20) + 1, 'a'));
  assert.equal((await get(at('c5.txt'), { 'accept-encoding': 'gzip, deflate' })).headers['content-encoding'], undefined, 'large files go as they are');
  const forced = await get(at('big.bin'), { 'accept-encoding': 'gzip' });
  assert.ok(zlib.gunzipSync(forced.body).equals(fs.readFileSync(at('big.bin'))));
  assert.equal((await get(at('c.txt'), { 'accept-encoding': 'gzip;q=0' })).headers['content-encoding'], undefined);
  assert.equal((await get(at('c.txt'), { 'accept-encoding': 'identity;q=0' })).status, 406);
  assert.equal((await get(at('c.txt'), { 'accept-encoding': '*;q=0' })).status, 406);
  assert.equal((await get(at('c.txt'), { 'accept-encoding': 'identity;q=0, *' })).headers['content-encoding'], 'gzip');
});

test('procfs and sysfs files have their content', async () => {
  const status = await get('/proc/self/status');
  assert.match(status.body.toString(), /^Name:\tholdfast-envd/);
  assert.equal((await get('/proc/kallsyms')).body.length, fs.readFileSync('/proc/kallsyms').length);
  const sys = fs.readdirSync('/sys/kernel').find((f) => fs.statSync(`/sys/kernel/${f}`).isFile() && f === 'notes') ?? 'profiling';
  const direct = fs.readFileSync(`/sys/kernel/${sys}`);
  const got = await get(`/sys/kernel/${sys}`);
  assert.ok(got.body.equals(direct));
  assert.equal((await get('/proc/version', { range: 'bytes=0-4' })).body.toString(), 'Linux');
});

test('a slow reader: the daemon neither buffers nor blocks', async () => {
  const size = 64 << 20;
  execFileSync('truncate', ['-s', String(size), at('huge')]);
  const rss = () => Number(/VmRSS:\s+(\d+)/.exec(fs.readFileSync(`/proc/${child.pid}/status`, 'utf8'))[1]);
  const base = rss();
  const reqs = [];
  for (let i = 0; i < 20; i++)
    reqs.push(await new Promise((resolve) => http.get({ host: '127.0.0.1', port, path: q({ path: at('huge'), username: 'root' }) }, (res) => resolve(res.pause()))));
  await sleep(300);
  const sanitized = fs.readFileSync(`/proc/${child.pid}/maps`, 'utf8').includes('asan');
  if (!sanitized) assert.ok(rss() - base < 40 * 1024, `${rss() - base} KiB more for 20 stuck readers`);
  const t0 = Date.now();
  assert.equal((await rpc('Stat', { path: at('huge') })).entry.size, String(size));
  assert.ok(Date.now() - t0 < 200);
  let n = 0;
  await new Promise((r) => reqs[0].on('data', (d) => (n += d.length)).on('end', r).resume());
  assert.equal(n, size);
  for (const r of reqs) r.destroy();
});

test('a file that shrinks while it is read: the connection breaks, the body is not padded', async () => {
  execFileSync('truncate', ['-s', String(200 << 20), at('shrink')]);
  await assert.rejects(
    new Promise((resolve, reject) =>
      http.get({ host: '127.0.0.1', port, path: q({ path: at('shrink'), username: 'root' }) }, (res) => {
        fs.truncateSync(at('shrink'), 10);
        res.resume().on('end', resolve).on('error', reject);
      }).on('error', reject),
    ),
  );
});

// ---- compose ----

test('compose joins, removes the sources and refuses nonsense', async () => {
  const parts = [crypto.randomBytes(300000), Buffer.alloc(0), crypto.randomBytes(70001)];
  parts.forEach((p, i) => fs.writeFileSync(at(`part${i}`), p));
  const compose = (msg) => envd.request('POST', '/files/compose', { headers: { 'content-type': 'application/json' }, body: typeof msg === 'string' ? msg : JSON.stringify(msg) });
  const names = parts.map((_, i) => at(`part${i}`));
  const res = await compose({ source_paths: names, destination: at('joined', 'deep', 'f'), username: 'nobody' });
  assert.deepEqual(json(res), { path: at('joined', 'deep', 'f'), name: 'f', type: 'file' });
  assert.ok(fs.readFileSync(at('joined', 'deep', 'f')).equals(Buffer.concat(parts)));
  assert.equal(fs.statSync(at('joined', 'deep', 'f')).uid, id('nobody'));
  for (const n of names) assert.ok(!fs.existsSync(n));
  refused(await compose('{'), 400, /^invalid request body: /);
  refused(await compose({ source_paths: [], destination: '/x' }), 400, /^source_paths must not be empty$/);
  refused(await compose({ source_paths: ['/x'] }), 400, /^destination is required$/);
  refused(await compose({ source_paths: [at('no')], destination: at('d'), username: 'root' }), 404, /^source file not found: /);
  refused(await compose({ source_paths: [box], destination: at('d'), username: 'root' }), 400, /^source path is not a regular file: /);
  refused(await compose({ source_paths: [at('e')], destination: at('e'), username: 'root' }), 400, /cannot be the same as destination/);
  refused(await compose({ source_paths: ['/x'], destination: '/y', username: 'zz' }), 401);
  refused(await compose({ source_paths: ['/x', 1], destination: '/y', username: 'root' }), 400, /list of texts/);
  refused(await compose({ source_paths: Array(5000).fill('/x'), destination: '/y', username: 'root' }), 400, /at most 4096/);
  refused(await compose('"' + 'x'.repeat(1 << 20) + '"'), 413);
  refused(await compose({ source_paths: [at('e')], destination: box, username: 'root' }), 400, /directory/);
  assert.ok(fs.existsSync(at('e')));
  assert.ok(!fs.readdirSync(path.dirname(box)).some((n) => n.startsWith('.holdfast-compose')));
});

// ---- who may ---- (last: it sets the token)

const token = '0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0';
const sign = (p, op, user, exp) => 'v1_' + crypto.createHash('sha256').update([p, op, user, token, ...(exp === undefined ? [] : [exp])].join(':')).digest('base64').replace(/=+$/, '');

test('tokens and signatures', async () => {
  const init = await new Promise((resolve, reject) => {
    const req = http.request({ socketPath: ctl, method: 'POST', path: '/init', headers: { 'content-type': 'application/json' } }, (res) => res.resume().on('end', () => resolve(res.statusCode)));
    req.on('error', reject);
    req.end(JSON.stringify({ accessToken: token, defaultUser: 'root', defaultWorkdir: box }));
  });
  assert.equal(init, 204);
  assert.equal(sign('hello.txt', 'read', 'user'), 'v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E');
  fs.writeFileSync(at('hello.txt'), 'hi');
  const g = (params, headers = {}) => envd.request('GET', q(params), { headers });
  refused(await g({ path: 'hello.txt' }), 401, /^missing signature query parameter$/);
  refused(await g({ path: 'hello.txt' }, { 'x-access-token': 'wrong' }), 401, /^access token present in header but does not match$/);
  assert.equal((await g({ path: 'hello.txt' }, { 'x-access-token': token })).body.toString(), 'hi');
  assert.equal((await g({ path: 'hello.txt', signature: sign('hello.txt', 'read', '') })).body.toString(), 'hi');
  assert.equal((await g({ path: 'hello.txt', username: 'root', signature: sign('hello.txt', 'read', 'root') })).body.toString(), 'hi');
  refused(await g({ path: 'hello.txt', username: 'root', signature: sign('hello.txt', 'read', '') }), 401, /^invalid signature$/);
  refused(await g({ path: 'hello.txt', signature: sign('hello.txt', 'write', '') }), 401, /^invalid signature$/);
  refused(await g({ path: 'hello.txt', signature: sign('hello.txt', 'read', '').slice(0, -1) }), 401, /^invalid signature$/);
  const soon = Math.floor(Date.now() / 1000) + 60, past = soon - 120;
  assert.equal((await g({ path: 'hello.txt', signature_expiration: soon, signature: sign('hello.txt', 'read', '', soon) })).status, 200);
  refused(await g({ path: 'hello.txt', signature_expiration: past, signature: sign('hello.txt', 'read', '', past) }), 401, /^signature is already expired$/);
  refused(await g({ path: 'hello.txt', signature_expiration: soon + 1, signature: sign('hello.txt', 'read', '', soon) }), 401, /^invalid signature$/);
  refused(await g({ path: 'hello.txt', signature_expiration: 'soon', signature: 'v1_x' }), 400);
  const up = await envd.request('POST', q({ signature: sign('', 'write', '') }), { headers: { 'content-type': 'multipart/form-data; boundary=BND' }, body: form(part('file', 'up.txt', 'signed')) });
  assert.equal(json(up)[0].path, at('up.txt'));
  refused(await envd.request('POST', q({ path: 'up.txt', signature: sign('up.txt', 'read', '') }), { headers: { 'content-type': 'application/octet-stream' }, body: 'x' }), 401, /^invalid signature$/);
  refused(await envd.request('POST', '/files/compose', { body: '{}' }), 401);
});

await run();
