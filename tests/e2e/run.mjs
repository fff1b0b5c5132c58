// Runs the node tests. `run.mjs e2e [FILE...]` (or e2e-asan): against one daemon that is started here, with the
// template `base`.
// `run.mjs faults`: the tests start and kill daemons themselves, on the same data directory.
// Everything runs inside a network namespace that plays the host, with a small internet behind it (lib/internet.mjs).
// Results go to $HF_RESULTS (see tools/dev/test.sh); exit status 0 only when every test passed.
import { spawn } from 'node:child_process'
import { readdirSync } from 'node:fs'
import path from 'node:path'
import { Daemon, ROOT } from './lib/daemon.mjs'
import { againInside } from './lib/internet.mjs'

const [suite = 'e2e', ...names] = process.argv.slice(2)
const here = import.meta.dirname
const data = process.env.HOLDFAST_E2E_DATA ?? path.join(ROOT, '.cache/e2e')
const isFault = (f) => f.startsWith('faults')
let files = readdirSync(here).filter((f) => f.endsWith('.test.mjs') && isFault(f) === (suite === 'faults'))
if (names.length > 0) files = files.filter((f) => names.some((n) => f.startsWith(n)))
if (files.length === 0) {
  console.error(`no test files for ${suite} ${names.join(' ')}`)
  process.exit(2)
}

function nodeTest(env) {
  const args = ['--test', '--test-concurrency=1', `--test-reporter=${path.join(here, 'lib/reporter.mjs')}`]
  if (process.env.HF_TEST_NAME) args.push(`--test-name-pattern=${process.env.HF_TEST_NAME}`)
  const child = spawn(process.execPath, [...args, ...files.map((f) => path.join(here, f))], {
    stdio: ['ignore', 'inherit', 'inherit'],
    env: { ...process.env, ...env, HF_SUITE: suite },
  })
  return new Promise((resolve) => child.on('exit', (code) => resolve(code ?? 1)))
}

if (!process.env.HF_NET_DIR) process.exit(await againInside())

// HTTPS as well, with a certificate of an authority of its own.
const daemon = new Daemon({ data, args: suite === 'faults' ? [] : ['--tls-listen', '127.0.0.1:0', '--domain', 'sbx.test'] })
if (suite !== 'faults') await daemon.cli(['cert', 'init', '--data', data, '--domain', 'sbx.test'])
await daemon.start()
if (await daemon.ensureBase(process.env.HF_BASE_TAR)) console.error('template base: imported')
let status
if (suite === 'faults') {
  await daemon.finish()
  status = await nodeTest({ HF_E2E_DATA: data })
} else {
  status = await nodeTest({
    HF_E2E_DATA: daemon.data,
    HF_E2E_URL: daemon.url,
    HF_E2E_HTTPS: daemon.httpsUrl,
    HF_E2E_KEY: await daemon.key(),
    HF_E2E_KEY2: await daemon.key('other'),
  })
  try {
    await daemon.finish()
  } catch (e) {
    console.error(e)
    daemon.child.kill('SIGKILL')
    status = 1
  }
}
process.exit(status)
