// End-to-end test of envd's filesystem service: node envd_fs_test.mjs PATH-OF-HOLDFAST-ENVD [name filter]
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import crypto from 'node:crypto';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { basic } from './envd_client.mjs';
import { at, box, child, envd, eventsUntil, fails, id, is, put, refused, rpc, run, sleep, test, watchDir } from './envd_box.mjs';

// ---- what the tests look at ----

fs.mkdirSync(at('real'));
fs.mkdirSync(at('names'));
for (const name of ['plain', 'new\nline', 'x'.repeat(255), 'ünïcode']) fs.writeFileSync(at('names', name), name);
fs.writeFileSync(at('put'), 'hello');
fs.symlinkSync(at('loop'), at('loop'));
execFileSync('mkfifo', ['-m', '644', at('fifo')]);

// ---- filesystem.Filesystem ----

test('Stat: files, directories, links', async () => {
  fs.writeFileSync(at('s'), 'four');
  fs.chmodSync(at('s'), 0o640);
  fs.utimesSync(at('s'), 1700000000, 1700000000.25);
  const { entry } = await rpc('Stat', { path: at('s') });
  assert.deepEqual(entry, {
    name: 's', type: 'FILE_TYPE_FILE', mode: 0o640, path: at('s'), size: '4', permissions: '-rw-r-----', owner: 'root', group: 'root',
    modifiedTime: '2023-11-14T22:13:20.250000000Z',
  });
  fs.chmodSync(at('real'), 0o1777);
  const d = (await rpc('Stat', { path: at('real') })).entry;
  assert.equal(d.type, 'FILE_TYPE_DIRECTORY');
  assert.equal(d.permissions, 'dtrwxrwxrwx');
  fs.symlinkSync('s', at('ln'));
  const l = (await rpc('Stat', { path: at('ln') })).entry;
  assert.equal(l.type, 'FILE_TYPE_FILE');
  assert.equal(l.mode, 0o640);
  assert.equal(l.permissions, 'Lrwxrwxrwx');
  assert.equal(l.symlinkTarget, at('s'));
  fs.symlinkSync('nothing', at('broken'));
  const b = (await rpc('Stat', { path: at('broken') })).entry;
  assert.equal(b.type, undefined);
  assert.equal(b.mode, 0);
  assert.equal(b.symlinkTarget, at('broken'));
  const f = (await rpc('Stat', { path: at('fifo') })).entry;
  assert.equal(f.type, undefined);
  assert.equal(f.permissions, 'prw-r--r--');
  assert.equal((await rpc('Stat', { path: '/dev/null' })).entry.permissions, 'Dcrw-rw-rw-');
  assert.equal((await rpc('Stat', { path: '/' })).entry.name, '/');
  await fails(rpc('Stat', { path: at('zz') }), 'not_found', /^file not found: /);
  await fails(rpc('Stat', { path: at('s', 'below') }), 'not_found');
  await fails(rpc('Stat', { path: at('s') }, { user: 'nouser' }), 'unauthenticated', /^invalid username: 'nouser'$/);
  await fails(rpc('Stat', { path: '/' + 'x/'.repeat(3000) }), 'invalid_argument');
});

test('the binary codec', async () => {
  const p = Buffer.from(at('s'));
  const res = await envd.request('POST', '/filesystem.Filesystem/Stat', {
    headers: { 'content-type': 'application/proto', authorization: basic('root') },
    body: Buffer.concat([Buffer.from([0x0a, p.length]), p]),
  });
  assert.equal(res.status, 200);
  assert.ok(res.body.includes(Buffer.from('-rw-r-----')));
  const dirp = Buffer.from(at('names'));
  const list = await envd.request('POST', '/filesystem.Filesystem/ListDir', {
    headers: { 'content-type': 'application/proto', authorization: basic('root') },
    body: Buffer.concat([Buffer.from([0x0a, dirp.length]), dirp]),
  });
  let n = 0;
  for (let pos = 0; pos < list.body.length; n++) {
    assert.equal(list.body[pos++], 0x0a);
    let len = 0;
    for (let shift = 0; ; shift += 7) {
      const c = list.body[pos++];
      len |= (c & 0x7f) << shift;
      if (c < 0x80) break;
    }
    pos += len;
  }
  assert.equal(n, fs.readdirSync(at('names')).length);
});

test('MakeDir', async () => {
  const { entry } = await rpc('MakeDir', { path: at('mk', 'a', 'b') }, { user: 'nobody' });
  assert.equal(entry.path, at('mk', 'a', 'b'));
  assert.equal(entry.type, 'FILE_TYPE_DIRECTORY');
  assert.equal(entry.owner, 'nobody');
  assert.equal(fs.statSync(at('mk')).uid, id('nobody'));
  await fails(rpc('MakeDir', { path: at('mk', 'a') }), 'already_exists', new RegExp(`^directory already exists: ${at('mk', 'a')}$`));
  await fails(rpc('MakeDir', { path: at('s') }), 'invalid_argument', /^path already exists but it is not a directory: /);
  await fails(rpc('MakeDir', { path: at('s', 'x') }), 'invalid_argument');
});

test('Move', async () => {
  fs.writeFileSync(at('mv1'), 'one');
  const { entry } = await rpc('Move', { source: at('mv1'), destination: at('mvd', 'x', 'two') });
  assert.equal(entry.path, at('mvd', 'x', 'two'));
  fs.writeFileSync(at('mv3'), 'three');
  await rpc('Move', { source: at('mv3'), destination: at('mvd', 'x', 'two') });
  assert.equal(fs.readFileSync(at('mvd', 'x', 'two'), 'utf8'), 'three');
  await fails(rpc('Move', { source: at('nope'), destination: at('never', 'x') }), 'not_found', /^source file not found: /);
  assert.ok(!fs.existsSync(at('never')));
  await fails(rpc('Move', { source: at('mvd'), destination: at('mvd', 'x', 'in') }), 'invalid_argument');
});

test('Move to another file system keeps everything', async () => {
  const disk = at('other');
  fs.mkdirSync(disk);
  execFileSync('mount', ['-t', 'tmpfs', 'tmpfs', disk]);
  try {
    const t = at('tree');
    fs.mkdirSync(path.join(t, 'a', 'empty'), { recursive: true });
    fs.writeFileSync(path.join(t, 'a', 'f'), crypto.randomBytes(500000));
    fs.chmodSync(path.join(t, 'a', 'f'), 0o4711);
    fs.chownSync(path.join(t, 'a'), id('nobody'), 0);
    fs.symlinkSync('a/f', path.join(t, 'link'));
    execFileSync('mkfifo', [path.join(t, 'pipe')]);
    fs.utimesSync(path.join(t, 'a'), 1600000000, 1600000000);
    const shape = (d) => execFileSync('find', ['.', '-printf', '%p %y %m %u %s %l\n'], { cwd: d }).toString().split('\n').filter((l) => !/^\S+ d /.test(l)).sort().join('\n');
    const before = shape(t), sum = crypto.createHash('sha256').update(fs.readFileSync(path.join(t, 'a', 'f'))).digest('hex');
    const res = await rpc('Move', { source: t, destination: path.join(disk, 'moved') });
    assert.equal(res.entry.type, 'FILE_TYPE_DIRECTORY');
    assert.ok(!fs.existsSync(t));
    assert.equal(shape(path.join(disk, 'moved')), before);
    assert.equal(crypto.createHash('sha256').update(fs.readFileSync(path.join(disk, 'moved', 'a', 'f'))).digest('hex'), sum);
    assert.equal(fs.statSync(path.join(disk, 'moved', 'a')).mtimeMs, 1600000000000);
    assert.equal(fs.statSync(path.join(disk, 'moved', 'a')).uid, id('nobody'));
    fs.writeFileSync(at('over'), 'new');
    fs.writeFileSync(path.join(disk, 'target'), 'old');
    await rpc('Move', { source: at('over'), destination: path.join(disk, 'target') });
    assert.equal(fs.readFileSync(path.join(disk, 'target'), 'utf8'), 'new');
    fs.mkdirSync(at('d1'));
    await fails(rpc('Move', { source: at('d1'), destination: path.join(disk, 'moved') }), 'failed_precondition');
    assert.ok(fs.existsSync(at('d1')));
    assert.deepEqual(fs.readdirSync(disk).sort(), ['moved', 'target']);
  } finally {
    execFileSync('umount', [disk]);
  }
});

test('ListDir: order, depth, links', async () => {
  for (const f of ['l/file1', 'l/subdir1/subdir1_1/deep', 'l/subdir1/file', 'l/subdir2/x']) {
    fs.mkdirSync(path.dirname(at(f)), { recursive: true });
    fs.writeFileSync(at(f), '');
  }
  fs.symlinkSync('subdir1', at('l/zlink'));
  fs.symlinkSync(at('l'), at('llink'));
  const names = async (p, depth) => (await rpc('ListDir', { path: p, depth })).entries.map((e) => e.path.slice(p.length + 1));
  assert.deepEqual(await names(at('l'), 0), ['file1', 'subdir1', 'subdir2', 'zlink']);
  assert.deepEqual(await names(at('l'), 1), ['file1', 'subdir1', 'subdir2', 'zlink']);
  assert.deepEqual(await names(at('l'), 2), ['file1', 'subdir1', 'subdir1/file', 'subdir1/subdir1_1', 'subdir2', 'subdir2/x', 'zlink']);
  assert.deepEqual(await names(at('llink'), 9), ['file1', 'subdir1', 'subdir1/file', 'subdir1/subdir1_1', 'subdir1/subdir1_1/deep', 'subdir2', 'subdir2/x', 'zlink']);
  const link = (await rpc('ListDir', { path: at('llink'), depth: 1 })).entries.at(-1);
  assert.equal(link.type, 'FILE_TYPE_DIRECTORY');
  assert.equal(link.symlinkTarget, at('l/subdir1'));
  assert.ok((await rpc('ListDir', { path: '/' })).entries.some((e) => e.path === '/etc'));
  fs.mkdirSync(at('nothing-in-it'));
  assert.deepEqual((await rpc('ListDir', { path: at('nothing-in-it') })).entries ?? [], []);
  await fails(rpc('ListDir', { path: at('zzz') }), 'not_found', /^path not found: /);
  await fails(rpc('ListDir', { path: at('s') }), 'invalid_argument', /^path is not a directory: /);
  await fails(rpc('ListDir', { path: at('loop') }), 'failed_precondition', /cyclic symlink/);
});

test('100,000 entries: listed and removed, the daemon stays awake', async () => {
  const many = at('many');
  fs.mkdirSync(many);
  for (let i = 0; i < 100000; i++) fs.closeSync(fs.openSync(path.join(many, `file-${i}`), 'w'));
  let worst = 0, on = true;
  const pings = (async () => {
    while (on) {
      const t = Date.now();
      await envd.request('GET', '/health');
      worst = Math.max(worst, Date.now() - t);
      await sleep(5);
    }
  })();
  const t0 = Date.now();
  const { entries } = await rpc('ListDir', { path: many });
  const t1 = Date.now();
  assert.equal(entries.length, 100000);
  assert.equal(entries[0].name, 'file-0');
  await rpc('Remove', { path: many });
  const t2 = Date.now();
  on = false;
  await pings;
  assert.ok(!fs.existsSync(many));
  console.log(`     list ${t1 - t0} ms, remove ${t2 - t1} ms, slowest health check ${worst} ms`);
});

test('Remove: trees of any depth, links, nothing', async () => {
  // 20,000 levels, made by a helper that changes directory as it goes: the path is far longer than PATH_MAX.
  execFileSync('python3', ['-c', `
import os
os.chdir(${JSON.stringify(box)}); os.mkdir('deep'); os.chdir('deep')
for i in range(20000):
    os.mkdir('d'); open('f','w').close(); os.chdir('d')
`]);
  await fails(rpc('ListDir', { path: at('deep'), depth: 4000000000 }), 'resource_exhausted', /smaller depth/);
  await rpc('Remove', { path: at('deep') });
  assert.ok(!fs.existsSync(at('deep')));
  fs.symlinkSync(at('l'), at('rmlink'));
  await rpc('Remove', { path: at('rmlink') });
  assert.ok(fs.existsSync(at('l/file1')));
  await rpc('Remove', { path: at('l') });
  assert.ok(!fs.existsSync(at('l')));
  await rpc('Remove', { path: at('l') });
  await rpc('Remove', { path: at('s') });
  assert.ok(!fs.existsSync(at('s')));
  await fails(rpc('Remove', { path: '/' }), 'invalid_argument');
});

// ---- watchers ----

test('WatchDir: create, write, chmod, rename, remove', async () => {
  fs.mkdirSync(at('w'));
  const s = await watchDir({ path: at('w') });
  fs.writeFileSync(at('w/f'), 'x');
  await eventsUntil(s, is('f', 'CREATE'));
  await eventsUntil(s, is('f', 'WRITE'));
  fs.chmodSync(at('w/f'), 0o600);
  await eventsUntil(s, is('f', 'CHMOD'));
  fs.renameSync(at('w/f'), at('w/g'));
  const seen = await eventsUntil(s, is('g', 'CREATE'));
  assert.ok(seen.some(is('f', 'RENAME')));
  fs.unlinkSync(at('w/g'));
  await eventsUntil(s, is('g', 'REMOVE'));
  fs.mkdirSync(at('w/sub'));
  await eventsUntil(s, is('sub', 'CREATE'));
  fs.writeFileSync(at('w/sub/unseen'), 'x');
  fs.writeFileSync(at('w/marker'), 'x');
  const rest = await eventsUntil(s, is('marker', 'CREATE'));
  assert.ok(!rest.some((e) => e.name.startsWith('sub/')));
  s.close();
});

test('WatchDir recursive: new directories, at once, without doubles', async () => {
  fs.mkdirSync(at('wr/old/er'), { recursive: true });
  const s = await watchDir({ path: at('wr'), recursive: true });
  fs.writeFileSync(at('wr/old/er/f'), 'x');
  await eventsUntil(s, is('old/er/f', 'WRITE'));
  for (let i = 0; i < 30; i++) {
    fs.mkdirSync(at(`wr/n${i}/a/b`), { recursive: true });
    fs.writeFileSync(at(`wr/n${i}/a/b/file`), 'content');
  }
  fs.writeFileSync(at('wr/end'), '');
  const seen = [], want = new Set();
  for (let i = 0; i < 30; i++) for (const n of [`n${i}`, `n${i}/a`, `n${i}/a/b`, `n${i}/a/b/file`]) want.add(n);
  const wrote = new Set();
  while (want.size || wrote.size < 30) {
    const e = (await s.next(5000)).msg.filesystem;
    seen.push(e);
    if (e.type === 'EVENT_TYPE_CREATE') want.delete(e.name);
    if (e.type === 'EVENT_TYPE_WRITE' && e.name.endsWith('/file')) wrote.add(e.name);
  }
  await sleep(200);
  while (s.queue.length) seen.push(s.queue.shift().msg.filesystem);
  const created = seen.filter((e) => e.type === 'EVENT_TYPE_CREATE').map((e) => e.name);
  assert.equal(created.length, new Set(created).size, 'doubles: ' + created.filter((n, i) => created.indexOf(n) !== i));
  fs.renameSync(at('wr/n1'), at('wr/m1'));
  await eventsUntil(s, is('m1/a/b/file', 'CREATE'));
  fs.writeFileSync(at('wr/m1/a/b/later'), 'x');
  await eventsUntil(s, is('m1/a/b/later', 'CREATE'));
  fs.rmSync(at('wr/n2'), { recursive: true });
  await eventsUntil(s, is('n2', 'REMOVE'));
  fs.mkdirSync(at('wr/n2'));
  await eventsUntil(s, is('n2', 'CREATE'));
  fs.writeFileSync(at('wr/n2/again'), 'x');
  await eventsUntil(s, is('n2/again', 'WRITE'));
  s.close();
});

test('WatchDir: entries, keepalive, errors, a removed root', async () => {
  const s = await watchDir({ path: at('w'), includeEntry: true }, { headers: { 'keepalive-ping-interval': '1' } });
  fs.writeFileSync(at('w/with-entry'), 'abc');
  const seen = await eventsUntil(s, is('with-entry', 'WRITE'));
  assert.equal(seen.at(-1).entry.path, at('w/with-entry'));
  assert.equal(seen.at(-1).entry.size, '3');
  const t0 = Date.now();
  for (let item; !(item = await s.next(3000)).msg.keepalive; ) assert.ok(item.msg.filesystem);
  assert.ok(Date.now() - t0 < 2500);
  fs.rmSync(at('w'), { recursive: true });
  await eventsUntil(s, is('.', 'REMOVE'));
  s.close();
  await fails(watchDir({ path: at('w') }), 'not_found', /^path .* not found: /);
  await fails(watchDir({ path: at('put') }), 'invalid_argument', /not a directory/);
  const ended = await watchDir({ path: at('wr') }, { headers: { 'connect-timeout-ms': '300' } });
  const last = await ended.next(3000);
  assert.equal(last.msg.error.code, 'deadline_exceeded');
});

test('closed streams give their watches back', async () => {
  const count = () => fs.readdirSync(`/proc/${child.pid}/fd`).filter((f) => {
    try { return fs.readlinkSync(`/proc/${child.pid}/fd/${f}`) === 'anon_inode:inotify'; } catch { return false; }
  }).length;
  await sleep(100);
  const before = count();
  const streams = [];
  for (let i = 0; i < 20; i++) streams.push(await watchDir({ path: at('wr'), recursive: true }));
  assert.equal(count(), before + 20);
  for (const s of streams) s.close();
  for (let i = 0; i < 50 && count() > before; i++) await sleep(20);
  assert.equal(count(), before);
});

test('polled watchers: events, overflow, removal', async () => {
  fs.mkdirSync(at('p'));
  const { watcherId } = await rpc('CreateWatcher', { path: at('p'), recursive: true });
  assert.match(watcherId, /^w[a-z0-9]+$/);
  assert.deepEqual((await rpc('GetWatcherEvents', { watcherId })).events, []);
  fs.writeFileSync(at('p/a'), 'x');
  await sleep(100);
  const { events } = await rpc('GetWatcherEvents', { watcherId });
  assert.deepEqual(events[0], { name: 'a', type: 'EVENT_TYPE_CREATE' });
  assert.ok(events.some(is('a', 'WRITE')));
  assert.deepEqual((await rpc('GetWatcherEvents', { watcherId })).events, []);
  for (let i = 0; i < 10000; i++) fs.closeSync(fs.openSync(at(`p/f${i}`), 'w'));
  await sleep(300);
  await fails(rpc('GetWatcherEvents', { watcherId }), 'data_loss', /events were dropped/);
  const kept = (await rpc('GetWatcherEvents', { watcherId })).events;
  assert.equal(kept.length, 8192);
  assert.deepEqual(kept[0], { name: 'f0', type: 'EVENT_TYPE_CREATE' });
  await rpc('RemoveWatcher', { watcherId });
  await fails(rpc('GetWatcherEvents', { watcherId }), 'not_found', new RegExp(`^watcher with id ${watcherId} not found$`));
  await fails(rpc('RemoveWatcher', { watcherId }), 'not_found');
  await fails(rpc('CreateWatcher', { path: at('zz') }), 'not_found');
});

test('network file systems are refused unless asked for', async () => {
  // No network mount can be made here without a server; FUSE has one if fusermount and a mount exist.
  const mounts = fs.readFileSync('/proc/mounts', 'utf8').split('\n').map((l) => l.split(' '));
  const fuse = mounts.find((m) => /^fuse\./.test(m[2] ?? '') || m[2] === 'nfs4');
  if (!fuse) return 'skipped: this host has no network mount';
  await fails(watchDir({ path: fuse[1] }), 'invalid_argument', /^cannot watch path on network filesystem: /);
});

await run();
