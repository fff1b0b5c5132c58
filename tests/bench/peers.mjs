// crun, runc and bwrap on the base template's root file system. Runs in a private mount namespace where the v2 mount
// of a hybrid cgroup tree is gone (tools/dev/bench.sh): crun refuses hybrid trees.
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { timeProcess } from './lib.mjs'

export class Peers {
  constructor(dir, baseTar) {
    this.dir = dir
    this.rootfs = path.join(dir, 'rootfs')
    this.next = 0
    if (!existsSync(path.join(this.rootfs, 'usr/bin/true'))) {
      rmSync(this.rootfs, { recursive: true, force: true })
      mkdirSync(this.rootfs, { recursive: true })
      execFileSync('tar', ['-C', this.rootfs, '-xpf', baseTar])
    }
    for (const runtime of ['crun', 'runc']) {
      this.bundle(runtime, 'true', ['/bin/true'])
      this.bundle(runtime, 'sleep', ['/bin/sleep', '100000'])
    }
  }

  // The runtime's own default spec, with the limits that our sandboxes have and no terminal.
  bundle(runtime, name, args) {
    const dir = path.join(this.dir, `${runtime}-${name}`)
    rmSync(dir, { recursive: true, force: true })
    mkdirSync(dir, { recursive: true })
    execFileSync(runtime, ['spec'], { cwd: dir })
    const file = path.join(dir, 'config.json')
    const c = JSON.parse(readFileSync(file, 'utf8'))
    c.process.terminal = false
    c.process.args = args
    delete c.process.rlimits // may not be raised without CAP_SYS_RESOURCE
    c.root.path = this.rootfs
    c.linux.resources = { memory: { limit: 512 << 20 }, pids: { limit: 1024 }, cpu: { quota: 200_000, period: 100_000 } }
    writeFileSync(file, JSON.stringify(c))
    return dir
  }

  state(runtime) {
    return ['--root', path.join(this.dir, `${runtime}-state`)]
  }

  name() {
    return `hfbench${process.pid}-${this.next++}`
  }

  // cgroup false: without limits, which is the least that crun can do.
  run(runtime, { cgroup = true } = {}) {
    return timeProcess(runtime, [...this.state(runtime), ...(cgroup ? [] : ['--cgroup-manager=disabled']), 'run', '-b', path.join(this.dir, `${runtime}-true`), this.name()])
  }

  bwrap() {
    return timeProcess('bwrap', ['--bind', this.rootfs, '/', '--proc', '/proc', '--dev', '/dev', '--unshare-all', '--die-with-parent', 'true'])
  }

  // A container that sleeps; resolves when its process runs.
  async sleeper(runtime) {
    const id = this.name()
    await timeProcess(runtime, [...this.state(runtime), 'run', '-d', '-b', path.join(this.dir, `${runtime}-sleep`), id])
    return id
  }

  exec(runtime, id) {
    return timeProcess(runtime, [...this.state(runtime), 'exec', id, '/bin/true'])
  }

  remove(runtime, id) {
    return timeProcess(runtime, [...this.state(runtime), 'delete', '-f', id])
  }
}

// What starting any process from this client costs: to be subtracted when a peer's own cost is meant.
export const spawnTrue = () => timeProcess('/bin/true', [])

