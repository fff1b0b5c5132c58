// Commands through the published SDK: process.Process in envd.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { Sandbox } from 'e2b'
import { sdk, box, rejects } from './lib/suite.mjs'
import { sleep, until } from './lib/http.mjs'

describe('commands', () => {
  let sbx
  before(async () => {
    sbx = await Sandbox.create('base', { ...sdk, timeoutMs: 600_000, envs: { FROM_CREATE: 'yes', OVER: 'create' } })
  })
  after(() => sbx?.kill())

  test('run gives stdout, stderr and exit code 0', async () => {
    const r = await sbx.commands.run('echo out; echo err >&2')
    assert.deepEqual({ out: r.stdout, err: r.stderr, code: r.exitCode }, { out: 'out\n', err: 'err\n', code: 0 })
  })

  test('a non-zero exit is a CommandExitError with everything in it', async () => {
    const e = await rejects(sbx.commands.run('echo a; echo b >&2; exit 7'), 'CommandExitError')
    assert.deepEqual([e.exitCode, e.stdout, e.stderr, e.error], [7, 'a\n', 'b\n', 'exit status 7'])
  })

  test('a missing command ends with 127', async () => {
    const e = await rejects(sbx.commands.run('no-such-command-here'), 'CommandExitError')
    assert.equal(e.exitCode, 127)
  })

  test('output streams while the command runs', async () => {
    const at = []
    await sbx.commands.run('for i in 1 2 3 4; do echo $i; sleep 0.2; done', { onStdout: (d) => void at.push([d, performance.now()]) })
    assert.equal(at.map((x) => x[0]).join(''), '1\n2\n3\n4\n')
    assert.ok(at.at(-1)[1] - at[0][1] > 400, 'the output came in one piece')
  })

  test('UTF-8 is not broken by chunk borders', async () => {
    const r = await sbx.commands.run(`python3 -c "print('é漢字🦀' * 30000)"`)
    assert.equal(r.stdout, 'é漢字🦀'.repeat(30000) + '\n')
  })

  test('envs: of the create, of the call, the call wins; E2B_SANDBOX is there', async () => {
    const r = await sbx.commands.run('echo $FROM_CREATE $OVER $CALL $E2B_SANDBOX $E2B_SANDBOX_ID', { envs: { OVER: 'call', CALL: '1' } })
    assert.equal(r.stdout.trim(), `yes call 1 true ${sbx.sandboxId}`)
  })

  test('the environment of a call does not leak into the next', async () => {
    await sbx.commands.run('true', { envs: { LEAK: '1' } })
    assert.equal((await sbx.commands.run('echo [$LEAK]')).stdout.trim(), '[]')
  })

  test('cwd: default home, given, relative to home, missing', async () => {
    assert.equal((await sbx.commands.run('pwd')).stdout.trim(), '/home/user')
    assert.equal((await sbx.commands.run('pwd', { cwd: '/tmp' })).stdout.trim(), '/tmp')
    await sbx.files.makeDir('/home/user/rel/dir')
    assert.equal((await sbx.commands.run('pwd', { cwd: 'rel/dir' })).stdout.trim(), '/home/user/rel/dir')
    await rejects(sbx.commands.run('pwd', { cwd: '/nowhere' }), 'InvalidArgumentError', /cwd '\/nowhere' does not exist/)
  })

  test('user: default user, root, unknown', async () => {
    assert.equal((await sbx.commands.run('whoami; id -u; echo $HOME')).stdout, 'user\n1000\n/home/user\n')
    assert.equal((await sbx.commands.run('whoami; id -u; echo $HOME', { user: 'root' })).stdout, 'root\n0\n/root\n')
    await rejects(sbx.commands.run('true', { user: 'nobody-here' }), 'AuthenticationError', /invalid username: 'nobody-here'/)
  })

  test('sudo works for user without a password', async () => {
    assert.equal((await sbx.commands.run('sudo -n id -u')).stdout.trim(), '0')
  })

  test('background: handle, wait, list', async () => {
    const h = await sbx.commands.run('sleep 0.3; echo done', { background: true })
    assert.ok(h.pid > 0)
    const listed = (await sbx.commands.list()).find((p) => p.pid === h.pid)
    assert.equal(listed?.cmd, '/bin/bash')
    assert.deepEqual(listed.args, ['-l', '-c', 'sleep 0.3; echo done'])
    assert.equal((await sbx.commands.run(`kill -0 ${h.pid} && echo alive`)).stdout.trim(), 'alive')
    const r = await h.wait()
    assert.equal(r.stdout, 'done\n')
    assert.ok(!(await sbx.commands.list()).some((p) => p.pid === h.pid), 'an ended process is still listed')
  })

  test('stdin: send, close', async () => {
    const h = await sbx.commands.run('cat; echo end', { background: true, stdin: true })
    await sbx.commands.sendStdin(h.pid, 'hello ')
    await h.sendStdin(Buffer.from('world\n'))
    await h.closeStdin()
    await sbx.commands.closeStdin(h.pid) // idempotent
    assert.equal((await h.wait()).stdout, 'hello world\nend\n')
  })

  test('stdin: 1 MiB arrives whole', async () => {
    const h = await sbx.commands.run('sha256sum', { background: true, stdin: true })
    const data = Buffer.alloc(1 << 20, 'holdfast\n')
    for (let i = 0; i < data.length; i += 1 << 17) await h.sendStdin(data.subarray(i, i + (1 << 17)))
    await h.closeStdin()
    const { createHash } = await import('node:crypto')
    assert.equal((await h.wait()).stdout.split(' ')[0], createHash('sha256').update(data).digest('hex'))
  })

  test('without stdin the command reads end of file; input to it is refused', async () => {
    assert.equal((await sbx.commands.run('cat; echo eof')).stdout, 'eof\n')
    const h = await sbx.commands.run('sleep 5', { background: true })
    await rejects(sbx.commands.sendStdin(h.pid, 'x'), 'SandboxError', /stdin not enabled or closed/)
    await h.kill()
  })

  test('kill: by handle and by pid; a second kill is false', async () => {
    const h = await sbx.commands.run('sleep 60', { background: true })
    assert.equal(await h.kill(), true)
    const e = await rejects(h.wait(), 'CommandExitError')
    assert.equal(e.exitCode, -1)
    assert.match(e.error, /signal: killed/)
    await until('it is forgotten', async () => (await sbx.commands.kill(h.pid)) === false, { timeoutMs: 3000 })
    assert.equal(await sbx.commands.kill(999_999), false)
  })

  test('a process that ignores SIGTERM dies of kill', async () => {
    const h = await sbx.commands.run('trap "" TERM; echo ready; while true; do sleep 1; done', { background: true })
    await until('ready', () => h.stdout.includes('ready'))
    assert.equal(await h.kill(), true)
    await rejects(h.wait(), 'CommandExitError')
  })

  test('timeoutMs ends the command and says so', async () => {
    const t0 = performance.now()
    await rejects(sbx.commands.run('sleep 33', { timeoutMs: 700 }), 'TimeoutError', /timeoutMs/)
    assert.ok(performance.now() - t0 < 5000)
    await until(
      'the command is dead',
      async () => (await sbx.commands.run('pgrep -f "sleep 3[3]" || echo none')).stdout.trim() === 'none'
    )
  })

  test('disconnect leaves the process running; connect follows it to its end', async () => {
    const h = await sbx.commands.run('for i in $(seq 1 20); do echo $i; sleep 0.1; done', { background: true })
    await until('some output', () => h.stdout.includes('3'))
    await h.disconnect()
    const again = await sbx.commands.connect(h.pid)
    assert.equal(again.pid, h.pid)
    const r = await again.wait()
    assert.equal(r.exitCode, 0)
    assert.ok(r.stdout.endsWith('19\n20\n'), JSON.stringify(r.stdout))
  })

  test('two subscribers both get the output', async () => {
    const h = await sbx.commands.run('sleep 0.4; for i in 1 2 3; do echo $i; sleep 0.1; done', { background: true })
    const second = await sbx.commands.connect(h.pid)
    const [a, b] = await Promise.all([h.wait(), second.wait()])
    assert.equal(a.stdout, '1\n2\n3\n')
    assert.equal(b.stdout, a.stdout)
  })

  test('connect to an ended process still tells its exit', async () => {
    const h = await sbx.commands.run('exit 5', { background: true })
    await rejects(h.wait(), 'CommandExitError')
    const again = await sbx.commands.connect(h.pid)
    assert.equal((await rejects(again.wait(), 'CommandExitError')).exitCode, 5)
  })

  test('connect to an unknown pid', async () => {
    await rejects(sbx.commands.connect(999_999), 'NotFoundError', /process with pid 999999 not found/)
  })

  test('a background grandchild does not lose the exit code', async () => {
    const r = await sbx.commands.run('nohup sleep 30 >/dev/null 2>&1 & echo started')
    assert.equal(r.stdout, 'started\n')
  })

  test('10 MB on one line', async () => {
    const r = await sbx.commands.run(`head -c 10000000 /dev/zero | tr '\\0' x`, { timeoutMs: 120_000 })
    assert.equal(r.stdout.length, 10_000_000)
    assert.ok(/^x+$/.test(r.stdout))
  })

  test('50 commands at once', async () => {
    const all = await Promise.all(Array.from({ length: 50 }, (_, i) => sbx.commands.run(`echo ${i}`)))
    all.forEach((r, i) => assert.equal(r.stdout, `${i}\n`))
  })

  test('zombies are reaped', async () => {
    await sbx.commands.run('for i in $(seq 50); do (setsid sleep 0.1 &) ; done; sleep 1')
    const r = await sbx.commands.run('ps -eo stat= | grep -c ^Z || true')
    assert.equal(r.stdout.trim(), '0')
  })

  test('a slow reader does not hold up the process', async () => {
    const slow = await sbx.commands.run('for i in $(seq 1 2000); do head -c 10000 /dev/zero | tr "\\0" y; done; touch /tmp/finished', {
      background: true,
      timeoutMs: 0,
      onStdout: () => sleep(50),
    })
    await until('the process came to its end', () => sbx.files.exists('/tmp/finished'), { timeoutMs: 60_000, everyMs: 200 })
    await slow.disconnect()
  })
})

test('kill of the sandbox ends a running command with an error', async (t) => {
  const sbx = await box(t)
  const h = await sbx.commands.run('sleep 100', { background: true })
  const ended = h.wait().catch((e) => e)
  await sleep(100)
  await sbx.kill()
  assert.equal((await ended).constructor.name, 'TimeoutError')
  await rejects(sbx.commands.run('true'), 'SandboxNotFoundError')
})
