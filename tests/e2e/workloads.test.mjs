// What processes may be doing when they are saved: each goes on after a cold pause as if nothing had been.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sandbox } from 'e2b'
import { api, box, sdk } from './lib/suite.mjs'
import { until } from './lib/http.mjs'

// Each program writes what it has done so far to /tmp/state, by rename; `more` means that it did more since.
const HEAD = `
import ctypes, os, socket, sqlite3, subprocess, sys, threading, time
def state(v):
    with open('/tmp/state.new', 'w') as f: f.write(str(v))
    os.replace('/tmp/state.new', '/tmp/state')
def forever(step):
    n = 0
    while True:
        n += 1
        step(n)
        state(n)
        time.sleep(0.02)
`
const WORK = {
  'ten thousand open files': `
files = [open(f'/tmp/f{i}', 'w+') for i in range(10000)]
def step(n):
    f = files[n * 37 % 10000]; f.write('x'); f.flush(); os.fstat(files[-1].fileno())
forever(step)`,
  'five hundred threads': `
counts = [0] * 500
def run(i):
    while True: counts[i] += 1; time.sleep(0.05)
threading.stack_size(256 * 1024)
for i in range(500): threading.Thread(target=run, args=(i,), daemon=True).start()
def step(n): assert threading.active_count() == 501
forever(step)`,
  'a SQLite writer in a loop': `
db = sqlite3.connect('/home/user/t.db', isolation_level=None)
db.execute('create table if not exists t(n integer primary key, v blob)')
def step(n):
    db.execute('begin'); db.execute('insert into t(v) values(randomblob(2000))'); db.execute('commit')
    if n % 10 == 0: assert db.execute('pragma integrity_check').fetchone()[0] == 'ok'
forever(step)`,
  'a listening server and its clients': `
srv = socket.create_server(('127.0.0.1', 9000))
def serve():
    while True:
        c, _ = srv.accept()
        threading.Thread(target=lambda: [c.sendall(c.recv(10) or b'') for _ in range(10**6)], daemon=True).start()
threading.excepthook = lambda a: None # a connection that was cut
threading.Thread(target=serve, daemon=True).start()
conn = None
def step(n):
    global conn
    try:
        conn = conn or socket.create_connection(('127.0.0.1', 9000), 2)
        conn.sendall(b'ping'); assert conn.recv(10) == b'ping'
    except (OSError, AssertionError): conn = None; state(n); step(n)
forever(step)`,
  'inotify watches': `
libc = ctypes.CDLL(None)
os.makedirs('/home/user/watched', exist_ok=True)
fd = libc.inotify_init()
assert libc.inotify_add_watch(fd, b'/home/user/watched', 0x100) > 0
def step(n):
    open(f'/home/user/watched/{n}', 'w').close(); assert str(n).encode() in os.read(fd, 4096)
forever(step)`,
  'unix sockets': `
try: os.unlink('/tmp/sock')
except OSError: pass
srv = socket.socket(socket.AF_UNIX); srv.bind('/tmp/sock'); srv.listen()
a = socket.socket(socket.AF_UNIX); a.connect('/tmp/sock'); b, _ = srv.accept()
x, y = socket.socketpair()
def step(n):
    a.sendall(b'%d' % n); assert b.recv(20) == b'%d' % n
    x.sendall(b'%d' % n); assert y.recv(20) == b'%d' % n
    c = socket.socket(socket.AF_UNIX); c.connect('/tmp/sock'); d, _ = srv.accept(); c.close(); d.close()
forever(step)`,
  'pipes between processes': `
p = subprocess.Popen(['sed', '-u', 's/a/b/'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def step(n):
    p.stdin.write(b'a%d\\n' % n); p.stdin.flush(); assert p.stdout.readline() == b'b%d\\n' % n
forever(step)`,
  'a deleted file that is still open': `
f = open('/home/user/gone', 'w+b'); f.write(b'here' * 100000); f.flush(); os.unlink('/home/user/gone')
def step(n):
    f.seek(0); assert f.read(4) == b'here'; f.seek(0, 2); f.write(b'x'); f.flush()
    assert not os.path.exists('/home/user/gone') and os.fstat(f.fileno()).st_size >= 400000
forever(step)`,
  'a heap of 300 MiB': `
import random
heap = [random.Random(i).randbytes(1 << 20) for i in range(300)]
def step(n): i = n * 7 % 300; assert heap[i] == random.Random(i).randbytes(1 << 20)
forever(step)`,
  'byte compilation at work': `
import compileall
def step(n): assert compileall.compile_dir('/usr/lib/python3', quiet=2, force=True, workers=2) in (True, False)
os.environ['PYTHONPYCACHEPREFIX'] = '/tmp/pyc'; sys.pycache_prefix = '/tmp/pyc'
forever(step)`,
  'memory that is shared, and a file that is mapped': `
import mmap
m = mmap.mmap(-1, 1 << 20)
f = open('/home/user/mapped', 'w+b'); f.truncate(1 << 20); g = mmap.mmap(f.fileno(), 1 << 20)
r, w = os.pipe()
if os.fork() == 0:
    while True: m[0:8] = (int.from_bytes(m[0:8], 'little') + 1).to_bytes(8, 'little'); time.sleep(0.005)
def step(n):
    before = int.from_bytes(m[0:8], 'little')
    while int.from_bytes(m[0:8], 'little') == before: time.sleep(0.001) # for ever, when the other one is gone or writes elsewhere
    g[0:8] = n.to_bytes(8, 'little'); assert os.pread(f.fileno(), 8, 0) == n.to_bytes(8, 'little')
forever(step)`,
}

const seen = async (sbx) => Number((await sbx.commands.run('cat /tmp/state 2>/dev/null || echo 0')).stdout)

async function pauseCold(sbx) {
  const client = api()
  try {
    const r = await client.json('POST', `/sandboxes/${sbx.sandboxId}/pause`, { depth: 'cold' })
    assert.equal(r.status, 204, JSON.stringify(r.json))
    const row = (await client.json('GET', `/v1/sandboxes/${sbx.sandboxId}`)).json
    const events = (await client.json('GET', `/v1/events?sandbox=${sbx.sandboxId}`)).json
    assert.equal(row.pause, 'cold', JSON.stringify(events))
  } finally {
    client.close()
  }
}

for (const [name, body] of Object.entries(WORK))
  test(name, { timeout: 60_000 }, async (t) => {
    const client = api()
    t.after(() => client.close())
    const made = await client.json('POST', '/v2/sandboxes', { templateID: 'base', timeout: 120, memoryMB: 768 })
    assert.equal(made.status, 201, JSON.stringify(made.json))
    const sbx = await Sandbox.connect(made.json.sandboxID, sdk)
    t.after(() => sbx.kill())
    await sbx.files.write('/tmp/work.py', HEAD + body)
    const cmd = await sbx.commands.run('ulimit -n 12000; exec python3 /tmp/work.py 2>/tmp/stderr', { background: true, timeoutMs: 0 })
    cmd.wait().catch(() => {})
    const works = async () => {
      const before = await seen(sbx)
      await until(`${name}: more after ${before}`, async () => (await seen(sbx)) > before, { timeoutMs: 20_000, everyMs: 50 }).catch(async (e) => {
        throw new Error(`${e.message}: ${(await sbx.commands.run('tail -5 /tmp/stderr; ps aux | grep work.py | head -3')).stdout}`)
      })
    }
    await works()
    await pauseCold(sbx)
    await Sandbox.connect(sbx.sandboxId, { ...sdk, timeoutMs: 120_000 })
    await works()
    await pauseCold(sbx) /* and what was restored can be saved */
    await Sandbox.connect(sbx.sandboxId, { ...sdk, timeoutMs: 120_000 })
    await works()
  })

test('a terminal with top', { timeout: 60_000 }, async (t) => {
  const sbx = await box(t, { timeoutMs: 120_000 })
  let out = ''
  const pty = await sbx.pty.create({ cols: 80, rows: 24, timeoutMs: 0, onData: (d) => (out += Buffer.from(d).toString()) })
  await sbx.pty.sendInput(pty.pid, Buffer.from('top -d 0.2\n'))
  await until('top draws', () => /load average/.test(out))
  await pauseCold(sbx)
  await Sandbox.connect(sbx.sandboxId, sdk)
  let later = ''
  await sbx.pty.connect(pty.pid, { timeoutMs: 0, onData: (d) => (later += Buffer.from(d).toString()) })
  await until('top draws on', () => later.length > 200)
  await sbx.pty.sendInput(pty.pid, Buffer.from('q'))
  await until('the shell goes on', async () => {
    await sbx.pty.sendInput(pty.pid, Buffer.from('echo done $((40+2))\n')) /* top throws away what came before its end */
    return /done 42/.test(later)
  }, { everyMs: 300 })
})
