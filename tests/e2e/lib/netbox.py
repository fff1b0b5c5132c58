"""What a program inside a sandbox finds when it uses the network. argv[1]: a JSON list of probes, run at the same time;
prints the list of results. A result is a plain value, so that a test can compare it at once."""
import errno
import json
import os
import socket
import ssl
import struct
import sys
import threading
import time

TIMEOUT = 4.0


def outcome(e):
    if isinstance(e, (socket.timeout, TimeoutError)):
        return "timeout"
    if isinstance(e, ssl.SSLError):
        return "tls: " + (e.reason or str(e)).lower()
    if isinstance(e, OSError) and e.errno:
        return {errno.ECONNREFUSED: "refused", errno.ECONNRESET: "reset", errno.EPIPE: "reset", errno.EHOSTUNREACH: "unreachable",
                errno.ENETUNREACH: "no route", errno.EACCES: "prohibited"}.get(e.errno, errno.errorcode.get(e.errno, str(e.errno)))
    return f"{type(e).__name__}: {e}"


def tcp(host, port, send="", read=64, source=None):
    """open, or open:<what came first>, or how it failed"""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(TIMEOUT)
        if source:
            s.bind((source, 0))
        s.connect((host, port))
        if send:
            s.sendall(send.encode("latin1"))
        if not read:
            return "open"
        data = s.recv(read)
        return "open:" + data.decode("latin1") if data else "closed"


def udp(host, port, send="ping", timeout=1.5):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.settimeout(timeout)
        s.connect((host, port))
        s.send(send.encode("latin1"))
        return "open:" + s.recv(2048).decode("latin1")


def resolve(name):
    """sorted addresses, or the resolver's error"""
    try:
        return sorted({x[4][0] for x in socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)})
    except socket.gaierror as e:
        return {socket.EAI_AGAIN: "again", socket.EAI_NONAME: "no name", socket.EAI_NODATA: "no data"}.get(e.errno, str(e))


def nameserver():
    with open("/etc/resolv.conf", encoding="ascii") as f:
        for line in f:
            if line.startswith("nameserver"):
                return line.split()[1]
    return None


def query(name, type=1, server=None, over="udp", edns=True, raw=None):
    """{"rcode","answers","ede"} of one question to the box's resolver"""
    server = server or nameserver()
    if server is None:
        return "no resolver"
    labels = b"".join(bytes([len(x)]) + x.encode("latin1") for x in name.split(".") if x) + b"\0"
    msg = struct.pack("!HHHHHH", os.getpid() & 0xFFFF, 0x0100, 1, 0, 0, 1 if edns else 0) + labels + struct.pack("!HH", type, 1)
    if edns:
        msg += b"\0" + struct.pack("!HHIH", 41, 1232, 0, 0)
    if raw is not None:
        msg = bytes.fromhex(raw)
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM if over == "tcp" else socket.SOCK_DGRAM) as s:
        s.settimeout(TIMEOUT)
        s.connect((server, 53))
        if over == "tcp":
            s.sendall(struct.pack("!H", len(msg)) + msg)
            data = b""
            while len(data) < 2 or len(data) < 2 + struct.unpack("!H", data[:2])[0]:
                piece = s.recv(65536)
                if not piece:
                    return "closed"
                data += piece
            data = data[2:]
        else:
            s.send(msg)
            data = s.recv(65536)
    flags, qd, an, ns, ar = struct.unpack("!HHHHH", data[2:12])
    return {"rcode": flags & 15, "answers": an, "truncated": bool(flags & 0x0200), "size": len(data)}


def pipeline(name, n):
    """n questions at once over one TCP connection: how many answers came."""
    labels = b"".join(bytes([len(x)]) + x.encode("latin1") for x in name.split(".")) + b"\0"
    msgs = b""
    for i in range(n):
        msg = struct.pack("!HHHHHH", i, 0x0100, 1, 0, 0, 0) + labels + struct.pack("!HH", 1, 1)
        msgs += struct.pack("!H", len(msg)) + msg
    with socket.create_connection((nameserver(), 53), TIMEOUT) as s:
        s.sendall(msgs)
        data, ids = b"", set()
        while len(ids) < n:
            piece = s.recv(65536)
            if not piece:
                break
            data += piece
            while len(data) >= 2 and len(data) >= 2 + struct.unpack("!H", data[:2])[0]:
                size = struct.unpack("!H", data[:2])[0]
                ids.add(struct.unpack("!H", data[2:4])[0])
                data = data[2 + size:]
    return len(ids)


def http(url, method="GET", headers=None, address=None, sni=None, host=None, verify=True, body="", raw=None, timeout=None):
    """One request over a connection of its own; address: where to connect instead of the URL's name."""
    scheme, rest = url.split("://", 1)
    authority, _, path = rest.partition("/")
    name, _, port = authority.partition(":") if not authority.startswith("[") else (authority, "", "")
    port = int(port or (443 if scheme == "https" else 80))
    where = address or name.strip("[]")
    s = socket.create_connection((where, port), timeout or TIMEOUT)
    try:
        if scheme == "https":
            ctx = ssl.create_default_context()
            if not verify:
                ctx.check_hostname = False
                ctx.verify_mode = ssl.CERT_NONE
            ctx.set_alpn_protocols(["http/1.1"])
            s = ctx.wrap_socket(s, server_hostname=sni if sni is not None else name)
        if raw is None:
            lines = [f"{method} /{path} HTTP/1.1", f"Host: {host or authority}", "Connection: close"]
            lines += [f"{k}: {v}" for k, v in (headers or {}).items()]
            if body:
                lines.append(f"Content-Length: {len(body)}")
            raw = "\r\n".join(lines) + "\r\n\r\n" + body
        s.sendall(raw.encode("latin1"))
        data = b""
        while True:
            piece = s.recv(65536)
            if not piece:
                break
            data += piece
    finally:
        s.close()
    if not data:
        return "closed"
    head, _, payload = data.partition(b"\r\n\r\n")
    lines = head.decode("latin1").split("\r\n")
    got = {k.strip().lower(): v.strip() for k, _, v in (x.partition(":") for x in lines[1:])}
    if got.get("transfer-encoding") == "chunked":
        out = b""
        while payload:
            size, _, payload = payload.partition(b"\r\n")
            n = int(size or b"0", 16)
            if n == 0:
                break
            out, payload = out + payload[:n], payload[n + 2:]
        payload = out
    return {"status": int(lines[0].split()[1]), "headers": got, "body": payload.decode("utf8", "replace"), "answers": data.count(b"HTTP/1.1 ")}


def flow(host, port, seconds):
    """Writes a byte every 50 ms and reads it back: the times (s) at which the echo worked, then how it ended."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    begin, last = time.time(), 0.0
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(1.0)
        s.connect((host, port))
        while time.time() - begin < seconds:
            try:
                s.sendall(b"x")
                if not s.recv(1):
                    return {"last": last, "end": "closed"}
            except OSError as e:
                return {"last": last, "end": outcome(e)}
            last = time.time() - begin
            time.sleep(0.05)
    return {"last": last, "end": "alive"}


def flood(host, port, n, hold=1.0):
    """Opens n connections at once and keeps them: how many were made."""
    made, kept = 0, []
    for _ in range(n):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex((host, port))
        kept.append(s)
    time.sleep(hold)
    for s in kept:
        made += s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0 and _connected(s)
        s.close()
    return made


def _connected(s):
    try:
        s.getpeername()
        return 1
    except OSError:
        return 0


def freebind(source, host, port):
    """Sends UDP from an address that is not ours."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.SOL_IP, 15, 1)  # IP_FREEBIND
        s.settimeout(1.0)
        s.bind((source, 0))
        s.sendto(b"spoofed", (host, port))
        return "open:" + s.recv(100).decode()


def families():
    """Socket kinds that a box has no business with: those that could be made."""
    kinds = {"raw icmp": (socket.AF_INET, socket.SOCK_RAW, 1), "raw icmp6": (socket.AF_INET6, socket.SOCK_RAW, 58), "ping": (socket.AF_INET, socket.SOCK_DGRAM, 1),
             "packet": (17, socket.SOCK_RAW, 0), "vsock": (40, socket.SOCK_STREAM, 0), "bluetooth": (31, socket.SOCK_RAW, 1),
             "can": (29, socket.SOCK_RAW, 1), "netlink netfilter": (16, socket.SOCK_RAW, 12), "xdp": (44, socket.SOCK_RAW, 0)}
    made = []
    for name, args in kinds.items():
        try:
            socket.socket(*args).close()
            made.append(name)
        except OSError:
            pass
    return made


def interfaces():
    return sorted(name for _, name in socket.if_nameindex())


def routes():
    out = []
    for file in ("/proc/net/route", "/proc/net/ipv6_route"):
        try:
            with open(file, encoding="ascii") as f:
                out += [line for line in f if not line.startswith("Iface") and not line.rstrip().endswith(" lo")]
        except OSError:
            pass
    return len(out)


def address(family=4):
    """The box's own address."""
    with socket.socket(socket.AF_INET6 if family == 6 else socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect(("2001:db8::1" if family == 6 else "192.0.2.1", 9))
        return s.getsockname()[0]


OPS = {f.__name__: f for f in (tcp, udp, resolve, query, pipeline, http, flow, flood, freebind, families, interfaces, routes, address)}


def main():
    probes = json.loads(sys.argv[1])
    results = [None] * len(probes)

    def work(i, op, args):
        try:
            results[i] = OPS[op](**args)
        except Exception as e:  # every failure is a result
            results[i] = outcome(e)

    threads = [threading.Thread(target=work, args=(i, p.pop("op"), p), daemon=True) for i, p in enumerate(probes)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    print(json.dumps(results))


main()
