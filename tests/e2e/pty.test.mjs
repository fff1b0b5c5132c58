// PTYs through the published SDK.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { Sandbox } from 'e2b'
import { sdk, rejects } from './lib/suite.mjs'
import { sleep, until } from './lib/http.mjs'

describe('pty', () => {
  let sbx
  before(async () => {
    sbx = await Sandbox.create('base', { ...sdk, timeoutMs: 600_000 })
  })
  after(() => sbx?.kill())

  // A terminal and what it shows.
  async function terminal(opts = {}) {
    const t = { screen: '' }
    t.onData = (d) => void (t.screen += Buffer.from(d).toString())
    t.handle = await sbx.pty.create({ cols: 80, rows: 24, onData: t.onData, ...opts })
    t.type = (s) => sbx.pty.sendInput(t.handle.pid, Buffer.from(s))
    t.shows = (s) => until(`the terminal shows ${s}`, () => t.screen.includes(s)).catch((e) => assert.fail(`${e.message}; it shows ${JSON.stringify(t.screen.slice(-300))}`))
    return t
  }

  test('create, input, exit code', async () => {
    const t = await terminal()
    await t.type('echo sum=$((40+2))\n')
    await t.shows('sum=42')
    await t.type('exit 3\n')
    const e = await rejects(t.handle.wait(), 'CommandExitError')
    assert.equal(e.exitCode, 3)
  })

  test('it is a terminal of the given size, with TERM and a UTF-8 locale', async () => {
    const t = await terminal({ cols: 100, rows: 33 })
    await t.type('tty; stty size; echo "[$TERM] [$LANG]"\n')
    await t.shows('/dev/pts/')
    await t.shows('33 100')
    await t.shows('[xterm-256color] [C.UTF-8]')
    await t.handle.kill()
  })

  test('resize reaches the program', async () => {
    const t = await terminal()
    await t.type('trap "echo resized to $(stty size)" WINCH; echo armed\n')
    await t.shows('armed')
    await sbx.pty.resize(t.handle.pid, { cols: 132, rows: 50 })
    await t.type('stty size\n')
    await t.shows('50 132')
    await t.handle.kill()
  })

  test('ctrl-C interrupts', async () => {
    const t = await terminal()
    await t.type('sleep 100; echo code=$?\n')
    await sleep(200)
    await t.type('\x03')
    await t.type('echo after=$((1+1))\n')
    await t.shows('after=2')
    await t.handle.kill()
  })

  test('user, cwd, envs', async () => {
    const t = await terminal({ user: 'root', cwd: '/etc', envs: { WHAT: 'ever' } })
    await t.type('echo "<$(whoami) $(pwd) $WHAT>"\n')
    await t.shows('<root /etc ever>')
    await t.handle.kill()
  })

  test('disconnect and connect again', async () => {
    const t = await terminal()
    await t.type('VAR=kept\n')
    await t.handle.disconnect()
    let screen = ''
    const again = await sbx.pty.connect(t.handle.pid, { onData: (d) => void (screen += Buffer.from(d).toString()) })
    await sbx.pty.sendInput(again.pid, Buffer.from('echo "value=<$VAR>"\n'))
    await until('the new reader sees it', () => screen.includes('value=<kept>'))
    assert.equal(await sbx.pty.kill(again.pid), true)
  })

  test('kill ends it; a second kill is false', async () => {
    const t = await terminal()
    assert.equal(await sbx.pty.kill(t.handle.pid), true)
    await rejects(t.handle.wait(), 'CommandExitError')
    await until('forgotten', async () => (await sbx.pty.kill(t.handle.pid)) === false, { timeoutMs: 3000 })
  })

  test('a full-screen program draws', async () => {
    const t = await terminal()
    await t.type('clear; tput cup 5 5; echo MARK; exit\n')
    await t.handle.wait()
    assert.match(t.screen, /\x1b\[6;6H.*MARK/s)
  })

  test('resize of a process without a terminal is refused', async () => {
    const h = await sbx.commands.run('sleep 10', { background: true })
    await rejects(sbx.pty.resize(h.pid, { cols: 10, rows: 10 }), 'SandboxError', /tty not assigned to process/)
    await h.kill()
  })
})
