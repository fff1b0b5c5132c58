// An authoritative DNS server for the tests' small internet: UDP and TCP, A, AAAA, CNAME and TXT, every query logged.
import dgram from 'node:dgram'
import net from 'node:net'

const TYPES = { A: 1, NS: 2, CNAME: 5, SOA: 6, PTR: 12, MX: 15, TXT: 16, AAAA: 28, SRV: 33, HTTPS: 65, ANY: 255 }
const NAMES = Object.fromEntries(Object.entries(TYPES).map(([k, v]) => [v, k]))

const encodeName = (name) =>
  Buffer.concat([...name.split('.').filter(Boolean).map((l) => Buffer.concat([Buffer.from([l.length]), Buffer.from(l, 'latin1')])), Buffer.from([0])])

function ipv6(text) {
  const [head, tail] = text.split('::')
  const a = head ? head.split(':') : []
  const b = tail ? tail.split(':') : []
  const groups = tail === undefined ? a : [...a, ...Array(8 - a.length - b.length).fill('0'), ...b]
  return Buffer.from(groups.flatMap((g) => [parseInt(g, 16) >> 8, parseInt(g, 16) & 255]))
}

function data(type, value) {
  if (type === 'A') return Buffer.from(value.split('.').map(Number))
  if (type === 'AAAA') return ipv6(value)
  if (type === 'CNAME') return encodeName(value)
  if (type === 'TXT') return Buffer.concat([Buffer.from([value.length]), Buffer.from(value)])
  throw new Error(`no encoding for ${type}`)
}

function question(msg) {
  let at = 12
  const labels = []
  for (;;) {
    const n = msg[at++]
    if (!n) break
    labels.push(msg.toString('latin1', at, at + n))
    at += n
  }
  return { name: labels.join('.').toLowerCase(), type: msg.readUInt16BE(at), end: at + 4 }
}

// zone(name, type, peer) -> undefined (no such name), [] (no data) or records {name?, type, ttl, value}
export function startDns(addresses, zone, log) {
  const answer = (msg, over, peer) => {
    const q = question(msg)
    const type = NAMES[q.type] ?? String(q.type)
    log.push({ name: q.name, type, over, at: Date.now() })
    const records = zone(q.name, type, peer)
    const list = (records ?? []).filter((r) => TYPES[r.type] !== undefined)
    const body = list.map((r) => {
      const value = data(r.type, r.value)
      const fixed = Buffer.alloc(10)
      fixed.writeUInt16BE(TYPES[r.type], 0)
      fixed.writeUInt16BE(1, 2)
      fixed.writeUInt32BE(r.ttl ?? 60, 4)
      fixed.writeUInt16BE(value.length, 8)
      return Buffer.concat([encodeName(r.name ?? q.name), fixed, value])
    })
    const head = Buffer.alloc(12)
    msg.copy(head, 0, 0, 2)
    head.writeUInt16BE(0x8580 | (records === undefined ? 3 : 0), 2)
    head.writeUInt16BE(1, 4)
    head.writeUInt16BE(body.length, 6)
    const full = Buffer.concat([head, msg.subarray(12, q.end), ...body])
    if (over !== 'udp' || full.length <= 512) return full
    const cut = Buffer.concat([head, msg.subarray(12, q.end)])
    cut.writeUInt16BE(0x8780, 2) // truncated
    cut.writeUInt16BE(0, 6)
    return cut
  }
  const ready = []
  for (const address of addresses) {
    const udp = dgram.createSocket(address.includes(':') ? 'udp6' : 'udp4')
    udp.on('message', (msg, peer) => {
      try {
        udp.send(answer(msg, 'udp', peer), peer.port, peer.address)
      } catch {
        // not a question: an authoritative server stays silent
      }
    })
    ready.push(new Promise((resolve) => udp.bind(53, address, resolve)))
    const tcp = net.createServer((socket) => {
      let have = Buffer.alloc(0)
      socket.on('error', () => {})
      socket.on('data', (d) => {
        have = Buffer.concat([have, d])
        while (have.length >= 2 && have.length >= 2 + have.readUInt16BE(0)) {
          const n = have.readUInt16BE(0)
          const out = answer(have.subarray(2, 2 + n), 'tcp', { address: socket.remoteAddress })
          const size = Buffer.alloc(2)
          size.writeUInt16BE(out.length)
          socket.write(Buffer.concat([size, out]))
          have = have.subarray(2 + n)
        }
      })
    })
    ready.push(new Promise((resolve) => tcp.listen(53, address, resolve)))
  }
  return Promise.all(ready)
}
