// A node:test reporter: one line a test for people, one line a test for $HF_RESULTS.
import { appendFileSync } from 'node:fs'
import path from 'node:path'

const suite = process.env.HF_SUITE ?? 'e2e'
const results = process.env.HF_RESULTS

function record(name, kind, seconds, reason = '') {
  const clean = (s) => String(s).replace(/[\t\n]+/g, ' ').slice(0, 160)
  if (results) appendFileSync(results, `${[suite, clean(name), kind, seconds.toFixed(2), clean(reason)].join('\t')}\n`)
}

function cause(error) {
  const e = error?.cause ?? error
  return e?.stack ?? e?.message ?? String(e)
}

export default async function* reporter(source) {
  const count = { pass: 0, fail: 0, skip: 0 }
  for await (const { type, data } of source) {
    if (type === 'test:stderr' || type === 'test:stdout') yield data.message
    if (type !== 'test:pass' && type !== 'test:fail') continue
    // A suite is counted through its tests, unless it failed itself (a hook).
    if (data.details?.type === 'suite' && (type === 'test:pass' || data.details.error?.failureType === 'subtestsFailed')) continue
    const name = `${path.basename(data.file ?? '', '.test.mjs')}: ${data.name}`
    const seconds = (data.details?.duration_ms ?? 0) / 1000
    const kind = data.skip !== undefined && data.skip !== false ? 'skip' : type === 'test:pass' ? 'pass' : 'fail'
    count[kind]++
    record(name, kind, seconds, kind === 'skip' ? data.skip : kind === 'fail' ? cause(data.details.error).split('\n')[0] : '')
    const mark = { pass: 'ok  ', fail: 'FAIL', skip: 'skip' }[kind]
    yield `${mark} ${seconds.toFixed(2).padStart(6)} s  ${name}${kind === 'skip' ? ` (${data.skip})` : ''}\n`
    if (kind === 'fail') yield `${cause(data.details.error).replace(/^/gm, '        ')}\n`
  }
  yield `${count.pass} passed, ${count.fail} failed, ${count.skip} skipped\n`
}
