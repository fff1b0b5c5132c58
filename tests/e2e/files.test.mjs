// Files through the published SDK: /files and filesystem.Filesystem in envd.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { after, before, describe, test } from 'node:test'
import { FileType, FilesystemEventType, Sandbox } from 'e2b'
import { sdk, rejects, text } from './lib/suite.mjs'
import { until } from './lib/http.mjs'

const sha = (b) => createHash('sha256').update(b).digest('hex')

describe('files', () => {
  let sbx
  before(async () => {
    sbx = await Sandbox.create('base', { ...sdk, timeoutMs: 600_000 })
  })
  after(() => sbx?.kill())

  test('write and read text', async () => {
    const info = await sbx.files.write('hello.txt', 'hällo\n')
    assert.equal(info.path, '/home/user/hello.txt')
    assert.equal(info.name, 'hello.txt')
    assert.equal(info.type, 'file')
    assert.equal(await sbx.files.read('hello.txt'), 'hällo\n')
    assert.equal(await sbx.files.read('/home/user/hello.txt'), 'hällo\n')
  })

  test('overwrite truncates', async () => {
    await sbx.files.write('short.txt', 'a long first content')
    await sbx.files.write('short.txt', 'short')
    assert.equal(await sbx.files.read('short.txt'), 'short')
  })

  test('empty file', async () => {
    await sbx.files.write('empty', '')
    assert.equal(await sbx.files.read('empty'), '')
    assert.equal((await sbx.files.read('empty', { format: 'bytes' })).length, 0)
    assert.equal((await sbx.files.getInfo('empty')).size, 0)
  })

  test('formats: bytes, blob, stream', async () => {
    const data = Buffer.from([0, 1, 2, 255, 254, 10, 13])
    await sbx.files.write('bin', new Blob([data]))
    assert.deepEqual(Buffer.from(await sbx.files.read('bin', { format: 'bytes' })), data)
    assert.deepEqual(Buffer.from(await (await sbx.files.read('bin', { format: 'blob' })).arrayBuffer()), data)
    const parts = []
    for await (const c of await sbx.files.read('bin', { format: 'stream' })) parts.push(c)
    assert.deepEqual(Buffer.concat(parts), data)
  })

  for (const size of [16383, 16384, 16385, 65535, 65536, 65537, 1 << 20, (1 << 20) + 1])
    test(`${size} bytes survive`, async () => {
      const data = text(size, size)
      await sbx.files.write('sized', new Blob([data]))
      const back = Buffer.from(await sbx.files.read('sized', { format: 'bytes' }))
      assert.equal(sha(back), sha(data))
      assert.equal((await sbx.commands.run('sha256sum < sized')).stdout.split(' ')[0], sha(data))
    })

  test('64 MiB up and down', async () => {
    const data = Buffer.alloc(64 << 20)
    for (let i = 0; i < data.length; i += 4096) data.writeUInt32LE(i, i)
    await sbx.files.write('/tmp/big', new Blob([data]), { requestTimeoutMs: 120_000 })
    assert.equal((await sbx.commands.run('sha256sum < /tmp/big')).stdout.split(' ')[0], sha(data))
    const back = await sbx.files.read('/tmp/big', { format: 'bytes', requestTimeoutMs: 120_000 })
    assert.equal(sha(back), sha(data))
    await sbx.files.remove('/tmp/big')
  })

  test('octet-stream, stream and gzip uploads; gzip download', async () => {
    const data = Buffer.from(text(300_000))
    await sbx.files.write('octets', new Blob([data]), { useOctetStream: true })
    assert.equal(sha(await sbx.files.read('octets', { format: 'bytes' })), sha(data))
    await sbx.files.write('streamed', new Blob([data]).stream())
    assert.equal(sha(await sbx.files.read('streamed', { format: 'bytes' })), sha(data))
    await sbx.files.write('zipped', new Blob([data]), { gzip: true })
    assert.equal(sha(await sbx.files.read('zipped', { format: 'bytes' })), sha(data))
    assert.equal(sha(await sbx.files.read('zipped', { format: 'bytes', gzip: true })), sha(data))
  })

  test('several files in one call', async () => {
    const infos = await sbx.files.write([
      { path: 'many/a.txt', data: 'A' },
      { path: 'many/deep/er/b.txt', data: new Blob(['B']) },
      { path: '/tmp/many-c.txt', data: 'C' },
    ])
    assert.deepEqual(infos.map((i) => i.path), ['/home/user/many/a.txt', '/home/user/many/deep/er/b.txt', '/tmp/many-c.txt'])
    assert.equal(await sbx.files.read('many/deep/er/b.txt'), 'B')
    assert.equal(await sbx.files.read('/tmp/many-c.txt'), 'C')
  })

  test('parents are made and owned by the user; files are 0644', async () => {
    await sbx.files.write('made/by/upload.txt', 'x')
    const r = await sbx.commands.run('stat -c "%U:%G %a" made made/by made/by/upload.txt')
    assert.equal(r.stdout, 'user:user 755\nuser:user 755\nuser:user 644\n')
  })

  test('as root', async () => {
    await sbx.files.write('/root/secret', 'top', { user: 'root' })
    assert.equal(await sbx.files.read('/root/secret', { user: 'root' }), 'top')
    assert.equal((await sbx.files.getInfo('/root/secret', { user: 'root' })).owner, 'root')
  })

  test('odd names', async () => {
    for (const name of ['with space', 'ümlaut 漢字', "quote'\"s", 'per%cent+plus&amp', '-dash', '.hidden', 'semi;colon\\back']) {
      await sbx.files.write(`odd/${name}`, name)
      assert.equal(await sbx.files.read(`odd/${name}`), name)
    }
    assert.equal((await sbx.files.list('odd')).length, 7)
  })

  test('metadata', async () => {
    const info = await sbx.files.write('tagged', 'x', { metadata: { author: 'alice', kind: 'note' } })
    assert.deepEqual(info.metadata, { author: 'alice', kind: 'note' })
    assert.deepEqual((await sbx.files.getInfo('tagged')).metadata, { author: 'alice', kind: 'note' })
    await sbx.files.write('tagged', 'y', { metadata: { other: '1' } })
    assert.deepEqual((await sbx.files.getInfo('tagged')).metadata, { other: '1' })
  })

  test('errors: missing, a directory, bad user', async () => {
    await rejects(sbx.files.read('not-there'), 'FileNotFoundError', /does not exist/)
    await rejects(sbx.files.read('/etc'), 'InvalidArgumentError', /is a directory/)
    await rejects(sbx.files.write('/etc', 'x', { user: 'root' }), 'InvalidArgumentError', /directory/)
    await rejects(sbx.files.read('x', { user: 'who' }), 'AuthenticationError', /error looking up user 'who'/)
    await rejects(sbx.files.getInfo('not-there'), 'FileNotFoundError')
    await rejects(sbx.files.list('not-there'), 'FileNotFoundError')
    await rejects(sbx.files.rename('not-there', 'x'), 'FileNotFoundError')
  })

  test('exists', async () => {
    await sbx.files.write('here', '')
    assert.equal(await sbx.files.exists('here'), true)
    assert.equal(await sbx.files.exists('not-here'), false)
    assert.equal(await sbx.files.exists('/etc'), true)
  })

  test('makeDir: new, again, over a file', async () => {
    assert.equal(await sbx.files.makeDir('new/dir'), true)
    assert.equal(await sbx.files.makeDir('new/dir'), false)
    await sbx.files.write('a-file', '')
    await rejects(sbx.files.makeDir('a-file'), 'InvalidArgumentError', /not a directory/)
  })

  test('list: one level, depth 2, order, types', async () => {
    await sbx.commands.run('mkdir -p tree/sub1/sub11 tree/sub2; touch tree/file1 tree/sub1/inner; ln -s file1 tree/link; ln -s /nowhere tree/broken')
    const one = await sbx.files.list('tree')
    assert.deepEqual(one.filter((e) => e.name !== 'broken').map((e) => [e.name, e.type]), [
      ['file1', FileType.FILE],
      ['link', FileType.FILE],
      ['sub1', FileType.DIR],
      ['sub2', FileType.DIR],
    ])
    assert.equal(one.find((e) => e.name === 'link').symlinkTarget, '/home/user/tree/file1')
    const two = await sbx.files.list('tree', { depth: 2 })
    assert.ok(two.some((e) => e.path === '/home/user/tree/sub1/inner'))
    assert.ok(two.some((e) => e.path === '/home/user/tree/sub1/sub11'))
    assert.ok(!one.some((e) => e.path === '/home/user/tree/sub1/inner'))
    await rejects(sbx.files.list('tree', { depth: 0 }), 'InvalidArgumentError')
    await rejects(sbx.files.list('tree/file1'), 'InvalidArgumentError', /not a directory/)
  })

  test('getInfo', async () => {
    await sbx.files.write('info.txt', '12345')
    await sbx.commands.run('chmod 640 info.txt')
    const i = await sbx.files.getInfo('info.txt')
    assert.deepEqual(
      [i.name, i.type, i.path, i.size, i.mode, i.permissions, i.owner, i.group],
      ['info.txt', FileType.FILE, '/home/user/info.txt', 5, 0o640, '-rw-r-----', 'user', 'user']
    )
    assert.ok(Math.abs(i.modifiedTime.getTime() - Date.now()) < 60_000)
    assert.equal((await sbx.files.getInfo('/tmp')).type, FileType.DIR)
  })

  test('rename and remove', async () => {
    await sbx.files.write('old-name', 'x')
    const e = await sbx.files.rename('old-name', 'new/parent/new-name')
    assert.equal(e.path, '/home/user/new/parent/new-name')
    assert.equal(await sbx.files.exists('old-name'), false)
    assert.equal(await sbx.files.read('new/parent/new-name'), 'x')
    await sbx.files.remove('new')
    assert.equal(await sbx.files.exists('new'), false)
    await sbx.files.remove('new') // missing is success
  })

  test('files of /proc have their content', async () => {
    assert.match(await sbx.files.read('/proc/version'), /Linux/)
  })

  test('watchDir: create, write, remove, rename', async () => {
    await sbx.files.makeDir('watched')
    const events = []
    const handle = await sbx.files.watchDir('watched', (e) => void events.push(e))
    await sbx.files.write('watched/a', '1')
    await sbx.files.write('watched/a', '22')
    await sbx.files.rename('watched/a', 'watched/b')
    await sbx.files.remove('watched/b')
    const has = (name, type) => events.some((e) => e.name === name && e.type === type)
    await until('all events', () =>
      has('a', FilesystemEventType.CREATE) && has('a', FilesystemEventType.WRITE) && has('a', FilesystemEventType.RENAME) &&
      has('b', FilesystemEventType.CREATE) && has('b', FilesystemEventType.REMOVE)
    ).catch((e) => assert.fail(`${e.message}: ${JSON.stringify(events)}`))
    await handle.stop()
    const before = events.length
    await sbx.files.write('watched/after', '')
    assert.equal(events.length, before)
  })

  test('watchDir: recursive sees a write right after mkdir', async () => {
    await sbx.files.makeDir('deep-watched')
    const events = []
    const handle = await sbx.files.watchDir('deep-watched', (e) => void events.push(e), { recursive: true })
    await sbx.commands.run('mkdir -p deep-watched/x/y && echo 1 > deep-watched/x/y/z')
    await until('the nested event', () => events.some((e) => e.name === 'x/y/z')).catch((e) => assert.fail(`${e.message}: ${JSON.stringify(events)}`))
    await handle.stop()
  })

  test('watchDir: entries on demand, missing, a file', async () => {
    await sbx.files.makeDir('entry-watched')
    const events = []
    const handle = await sbx.files.watchDir('entry-watched', (e) => void events.push(e), { includeEntry: true })
    await sbx.files.write('entry-watched/f', 'abc')
    await until('an entry', () => events.some((e) => e.entry?.path === '/home/user/entry-watched/f'))
    await handle.stop()
    await rejects(sbx.files.watchDir('no-such-dir', () => {}), 'FileNotFoundError')
    await sbx.files.write('plain', '')
    await rejects(sbx.files.watchDir('plain', () => {}), 'InvalidArgumentError')
  })

  test('signed URLs carry their own permission', async () => {
    await sbx.files.write('signed.txt', 'signed content')
    const headers = { 'e2b-sandbox-id': sbx.sandboxId, 'e2b-sandbox-port': '49983' }
    const good = await fetch(await sbx.downloadUrl('signed.txt', { useSignatureExpiration: 60_000 }), { headers })
    assert.equal(good.status, 200)
    assert.equal(await good.text(), 'signed content')
    const unsigned = await fetch(`${sdk.sandboxUrl}/files?path=signed.txt`, { headers })
    assert.equal(unsigned.status, 401)
    assert.match((await unsigned.json()).message, /missing signature query parameter/)
    const tampered = (await sbx.downloadUrl('signed.txt')).replace('path=signed.txt', 'path=other.txt')
    assert.equal((await fetch(tampered, { headers })).status, 401)
    const late = await fetch(await sbx.downloadUrl('signed.txt', { useSignatureExpiration: -10_000 }), { headers })
    assert.equal(late.status, 401)
    assert.match((await late.json()).message, /expired/)
    const form = new FormData()
    form.append('file', new Blob(['uploaded']), 'up.txt')
    const up = await fetch(await sbx.uploadUrl('up.txt'), { method: 'POST', body: form, headers })
    assert.equal(up.status, 200)
    assert.equal(await sbx.files.read('up.txt'), 'uploaded')
    const asRead = (await sbx.uploadUrl('signed.txt')) // a write signature cannot read
    assert.equal((await fetch(asRead, { headers })).status, 401)
  })

  test('range requests', async () => {
    await sbx.files.write('range', '0123456789')
    const get = (range) => fetch(`${sdk.sandboxUrl}/files?path=range`, { headers: { range, 'e2b-sandbox-id': sbx.sandboxId, 'e2b-sandbox-port': '49983', 'x-access-token': sbx.envdAccessToken } })
    const mid = await get('bytes=2-4')
    assert.equal(mid.status, 206)
    assert.equal(mid.headers.get('content-range'), 'bytes 2-4/10')
    assert.equal(await mid.text(), '234')
    assert.equal(await (await get('bytes=-3')).text(), '789')
    assert.equal((await get('bytes=20-30')).status, 416)
  })

  test('a symlink out of the root stays in the sandbox', async () => {
    await sbx.commands.run('ln -sfn / /home/user/up; ln -sfn ../../../../../../../../etc/hostname /home/user/h')
    assert.equal((await sbx.files.read('/home/user/h')).trim(), sbx.sandboxId)
    assert.equal((await sbx.files.read('/home/user/up/../../../../../etc/hostname')).trim(), sbx.sandboxId)
  })

  test('NUL in a path is refused', async () => {
    const r = await fetch(`${sdk.sandboxUrl}/files?path=a%00b`, { headers: { 'e2b-sandbox-id': sbx.sandboxId, 'e2b-sandbox-port': '49983', 'x-access-token': sbx.envdAccessToken } })
    assert.equal(r.status, 400)
  })
})
