"""What a hostile program would try from inside a sandbox. Prints one JSON object: name -> "" when the wall held,
else what got through. Run as root in the box (the strongest user there). x86-64 and arm64."""
import ctypes
import errno
import json
import os
import platform
import resource
import signal
import socket
import stat
import sys



def open_descriptors():
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            pass  # the listing's own
    return {k: v for k, v in found.items() if k > 2}


INHERITED = open_descriptors()
libc = ctypes.CDLL(None, use_errno=True)
PROBE_SECONDS = 5
X86 = platform.machine() == "x86_64"
NR = {  # name: (x86-64, arm64)
    "unshare": (272, 97), "clone3": (435, 435), "setns": (308, 268), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "keyctl": (250, 219), "add_key": (248, 217),
    "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "open_by_handle_at": (304, 265), "acct": (163, 89), "swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "move_mount": (429, 429), "open_tree": (428, 428),
    "fsopen": (430, 430), "mount_setattr": (442, 442), "reboot": (169, 142), "syslog": (103, 116), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "personality": (135, 92),
    "clock_settime": (227, 112), "settimeofday": (164, 170), "adjtimex": (159, 171), "sethostname": (170, 161), "iopl": (172, None), "ioperm": (173, None),
    "modify_ldt": (154, None), "lookup_dcookie": (212, 18), "nfsservctl": (180, 42), "vhangup": (153, 58),
}


def sys_call(name, *args):
    """(result, errno); (None, 0) where the architecture has no such call."""
    number = NR[name][0 if X86 else 1]
    if number is None:
        return None, 0
    ctypes.set_errno(0)
    r = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    return r, ctypes.get_errno()


def refused(name, *args, allow=(errno.EPERM, errno.ENOSYS, errno.EACCES)):
    r, e = sys_call(name, *args)
    if r is None or (r == -1 and e in allow):
        return ""
    return f"{name}: returned {r}, errno {errno.errorcode.get(e, e)}"


def in_child(fn):
    """Runs fn in a child process; its returned text comes back, a death by signal is reported as such."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(PROBE_SECONDS)
        try:
            os.write(w, (fn() or "").encode())
        except BaseException as e:  # noqa: BLE001 the child must end here whatever happens
            os.write(w, f"probe broke: {e!r}".encode())
        os._exit(0)
    os.close(w)
    with os.fdopen(r, "rb") as f:
        text = f.read().decode()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        return f"did not end in {PROBE_SECONDS} s"
    return text


def writable(path, data="0"):
    try:
        with open(path, "w") as f:
            f.write(data)
        return f"{path} could be written"
    except OSError:
        return ""


def unreadable(path):
    """Empty or refused is fine; content is not."""
    try:
        with open(path, "rb") as f:
            return f"{path} has content" if f.read(64) else ""
    except OSError:
        return ""


PROBES = {}


def probe(fn):
    PROBES[fn.__name__] = fn
    return fn


@probe
def dotdot_chains_stay_inside():
    here = os.stat("/")
    bad = [p for p in ("/../../../../..", "/proc/self/root/../..", "/proc/1/root/..", "/proc/self/cwd/../../../../..")
           if os.path.exists(p) and (os.stat(p).st_ino, os.stat(p).st_dev) != (here.st_ino, here.st_dev)]
    return ", ".join(bad)


@probe
def no_host_files():
    run = set(os.listdir("/run/holdfast")) if os.path.exists("/run/holdfast") else set()
    if os.path.exists("/var/lib/holdfast/pool") or run - {"boot_id", "envd", "generation", "reseed.so"}:
        return f"the host's directories are visible: {run}"
    return ""


@probe
def mount_calls_refused():
    tries = [
        refused("mount", b"none", b"/mnt", b"tmpfs", 0, 0),
        refused("mount", b"/", b"/mnt", 0, 4096, 0),
        refused("mount", 0, b"/", 0, 32, 0),
        refused("umount2", b"/proc", 2), refused("pivot_root", b"/", b"/"), refused("fsopen", b"tmpfs", 0),
        refused("open_tree", -100, b"/", 1), refused("move_mount", -1, b"", -100, b"/mnt", 4), refused("mount_setattr", -100, b"/", 0, 0, 0),
    ]
    return "; ".join(t for t in tries if t)


@probe
def mknod_refused():
    for mode in (stat.S_IFBLK, stat.S_IFCHR):
        try:
            os.mknod("/tmp/dev-node", mode | 0o600, os.makedev(8, 0) if mode == stat.S_IFBLK else os.makedev(1, 1))
            os.unlink("/tmp/dev-node")
            return "a device node could be made"
        except PermissionError:
            pass
    return ""


@probe
def dev_is_minimal():
    allowed = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr", "mqueue", "console", "core"}
    extra = set(os.listdir("/dev")) - allowed
    return f"/dev also has {sorted(extra)}" if extra else ""


@probe
def no_new_user_namespaces():
    def by_clone3():
        args = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)
        r, e = sys_call("clone3", ctypes.byref(args), 88)
        if r == 0:
            os._exit(0)
        if r and r > 0:
            os.waitpid(r, 0)
            return "clone3(CLONE_NEWUSER) worked"
        return ""

    def by_clone():
        r = libc.syscall(ctypes.c_long(56 if X86 else 220), ctypes.c_long(0x10000000 | 17), 0, 0, 0, 0)
        if r == 0:
            os._exit(0)
        return "clone(CLONE_NEWUSER) worked" if r > 0 else ""

    flags = 0x10000000
    return "; ".join(t for t in (in_child(lambda: refused("unshare", flags)), in_child(by_clone3), in_child(by_clone),
                                 in_child(lambda: refused("unshare", 0x20000))) if t)


@probe
def dangerous_calls_refused():
    zero = ctypes.create_string_buffer(256)
    tries = [
        refused("setns", 0, 0), refused("bpf", 0, zero, 64), refused("perf_event_open", zero, 0, -1, -1, 0), refused("userfaultfd", 1),
        refused("io_uring_setup", 4, zero), refused("keyctl", 0, -3, 1), refused("add_key", b"user", b"x", b"y", 1, -3),
        refused("kexec_load", 0, 0, 0, 0), refused("init_module", zero, 0, b""), refused("finit_module", 0, b"", 0), refused("delete_module", b"x", 0),
        refused("open_by_handle_at", -100, zero, 0), refused("acct", b"/tmp/acct"), refused("swapon", b"/tmp/x", 0), refused("swapoff", b"/tmp/x"),
        refused("quotactl", 0, 0, 0, 0), refused("reboot", 0, 0, 0, 0), refused("iopl", 3), refused("ioperm", 0, 1, 1), refused("lookup_dcookie", 0, zero, 1),
        refused("nfsservctl", 0, 0, 0),
    ]
    return "; ".join(t for t in tries if t)


@probe
def clock_cannot_be_set():
    ts = (ctypes.c_long * 2)(1, 0)
    timex = ctypes.create_string_buffer(512)
    timex[0] = b"\x01"  # ADJ_OFFSET
    return "; ".join(t for t in (refused("clock_settime", 0, ts), refused("settimeofday", ts, 0), refused("adjtimex", timex)) if t)


@probe
def foreign_abis_refused():
    if not X86:
        return ""

    def x32():
        r = libc.syscall(ctypes.c_long(0x40000000 + 39))
        return f"an x32 call returned {r}" if r > 0 else ""

    def i386():
        code = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # mov eax, 20 (getpid); int 0x80; ret
        import mmap
        m = mmap.mmap(-1, 4096, prot=7)
        m.write(code)
        fn = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))
        r = fn()
        return f"an int 0x80 call returned {r}" if r > 0 else ""

    return "; ".join(t for t in (in_child(x32), in_child(i386)) if t)


@probe
def proc_is_masked():
    bad = [unreadable(p) for p in ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/kmsg", "/proc/kallsyms_all", "/proc/latency_stats")]
    for p in ("/sys/firmware", "/proc/acpi", "/proc/scsi", "/proc/asound"):
        try:
            if os.path.isdir(p) and os.listdir(p):
                bad.append(f"{p} is not empty")
        except OSError:
            pass
    return "; ".join(b for b in bad if b)


@probe
def kernel_settings_are_read_only():
    paths = ["/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches",
             "/proc/sys/kernel/hostname", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/fs/file-max", "/sys/kernel/uevent_helper", "/proc/irq/default_smp_affinity",
             "/proc/bus/pci/00", "/sys/power/state"]
    return "; ".join(t for t in map(writable, paths) if t)


@probe
def cgroups_are_closed():
    bad = []
    for where, _, files in os.walk("/sys/fs/cgroup"):
        for name in files:
            if name in ("release_agent", "notify_on_release", "cgroup.procs", "memory.max", "memory.limit_in_bytes", "pids.max", "cpu.max"):
                bad.append(writable(os.path.join(where, name)))
    return "; ".join(b for b in bad if b)[:200]


@probe
def proc_shows_only_own_processes():
    pids = [int(p) for p in os.listdir("/proc") if p.isdigit()]
    with open("/proc/1/comm") as f:
        init = f.read().strip()
    if not init.startswith(("holdfast-envd", "envd")):
        return f"PID 1 is {init}"
    return f"{len(pids)} processes are visible" if len(pids) > 60 else ""


@probe
def no_secret_in_environment_or_arguments():
    token = sys.argv[1] if len(sys.argv) > 1 else ""
    for pid in (p for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()):
        for name in ("environ", "cmdline"):
            try:
                with open(f"/proc/{pid}/{name}", "rb") as f:
                    data = f.read()
            except OSError:
                continue
            if b"e2b_" in data or (token and token.encode() in data and int(pid) == 1):
                return f"/proc/{pid}/{name} holds a key or token"
    return ""


@probe
def init_cannot_be_traced_or_read():
    zero = ctypes.create_string_buffer(64)
    bad = [t for t in (refused("ptrace", 16, 1, 0, 0, allow=(errno.EPERM, errno.ESRCH, errno.ENOSYS, errno.EACCES)),) if t]
    r, e = sys_call("process_vm_readv", 1, zero, 1, zero, 1, 0)
    if r > 0:
        bad.append("process_vm_readv of PID 1 worked")
    for name in ("environ", "maps", "mem"):
        try:
            with open(f"/proc/1/{name}", "rb") as f:
                f.read(1)
            bad.append(f"/proc/1/{name} can be read")
        except OSError:
            pass
    return "; ".join(bad)


@probe
def kernel_log_is_closed():
    buf = ctypes.create_string_buffer(4096)
    r, e = sys_call("syslog", 3, buf, 4096)
    return "the kernel log can be read" if r is not None and r > 0 else unreadable("/dev/kmsg")


@probe
def no_network_to_the_host():
    """Loopback and the box's own wire; what that reaches is the business of the net tests."""
    bad = []
    names = sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else []
    with open("/proc/net/dev") as f:
        names = [line.split(":")[0].strip() for line in f.readlines()[2:]] or names
    if set(names) - {"lo", "eth0"}:
        bad.append(f"interfaces {names}")
    for family, kind in ((socket.AF_PACKET, socket.SOCK_RAW), (getattr(socket, "AF_VSOCK", 40), socket.SOCK_STREAM)):
        try:
            s = socket.socket(family, kind)
            s.connect((2, 1)) if family != socket.AF_PACKET else None
            s.close()
            bad.append(f"a socket of family {family} worked")
        except OSError:
            pass
    s = socket.socket()
    s.settimeout(1)
    for addr in ("169.254.169.254", "10.118.0.1"):
        try:
            s.connect((addr, 80))
            bad.append(f"{addr} is reachable")
        except OSError:
            pass
    s.close()
    return "; ".join(bad)


@probe
def abstract_sockets_of_the_host_are_unreachable():
    with open("/proc/net/unix") as f:
        names = [line.split()[-1] for line in f if "@" in line]
    return f"visible: {names[:5]}" if any("holdfast" in n for n in names) else ""


@probe
def limits_cannot_be_raised():
    bad = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 100_000_000, hard + 100_000_000))
            bad.append("RLIMIT_NOFILE could be raised")
        except (ValueError, OSError):
            pass
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
        bad.append("real-time scheduling worked")
    except OSError:
        pass
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -10)
        bad.append("a negative nice worked")
    except OSError:
        pass
    return "; ".join(bad)


@probe
def signals_stay_inside():
    try:
        os.kill(2**22 - 3, 0)
        return "a host pid could be signalled"
    except OSError:
        return ""


@probe
def tty_injection_refused():
    import fcntl
    import pty
    import termios
    _, slave = pty.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSTI, b"x")
        return "TIOCSTI worked"
    except OSError:
        return ""


@probe
def seccomp_is_on():
    with open("/proc/self/status") as f:
        fields = dict(line.split(":", 1) for line in f if ":" in line)
    return "" if fields["Seccomp"].strip() == "2" else f"Seccomp: {fields['Seccomp'].strip()}"


@probe
def capabilities_are_bounded():
    with open("/proc/self/status") as f:
        bounding = int(next(line for line in f if line.startswith("CapBnd")).split()[1], 16)
    never = {"SYS_ADMIN": 21, "SYS_PTRACE": 19, "NET_ADMIN": 12, "SYS_MODULE": 16, "SYS_RAWIO": 17, "SYS_BOOT": 22, "SYS_TIME": 25, "BPF": 39, "PERFMON": 38, "SYSLOG": 34, "DAC_READ_SEARCH": 2}
    return ", ".join(n for n, bit in never.items() if bounding >> bit & 1)


@probe
def inherited_descriptors_are_few():
    return f"{INHERITED}" if INHERITED else ""


@probe
def core_dumps_stay_inside():
    if os.fork() == 0:
        os.kill(os.getpid(), signal.SIGSEGV)
    os.wait()
    return ""


@probe
def sudo_gains_nothing_outside():
    with open("/proc/self/uid_map") as f:
        inside, outside, count = map(int, f.read().split()[:3])
    return f"uid 0 is {outside} outside" if outside == 0 or count > 65536 else ""


@probe
def personality_is_harmless():
    return refused("personality", 0x0040000, allow=(errno.EPERM, errno.ENOSYS, errno.EINVAL))


@probe
def one_pebibyte_sparse_file_is_bounded():
    try:
        with open("/tmp/sparse", "wb") as f:
            f.truncate(1 << 50)
        os.unlink("/tmp/sparse")
    except OSError:
        pass
    free = os.statvfs("/tmp")
    return "" if free.f_blocks * free.f_frsize < 1 << 40 else "the disk has no quota"


def inside_a_sandbox():
    """These probes do real harm where no wall stops them (they unmount /proc, set the clock, write kernel settings):
    they run only where uid 0 is somebody else outside and PID 1 is envd."""
    with open("/proc/self/uid_map", encoding="ascii") as f:
        maps = [line.split() for line in f]
    with open("/proc/1/comm", encoding="ascii") as f:
        init = f.read()
    return len(maps) == 1 and maps[0][1] != "0" and int(maps[0][2]) <= 65536 and "envd" in init


def main():
    if not inside_a_sandbox():
        sys.exit("probes.py: not inside a sandbox; running this on a host would damage it")
    out = {}
    for name, fn in PROBES.items():
        try:
            out[name] = in_child(fn)
        except Exception as e:  # noqa: BLE001 a broken probe is a finding, not a crash of the rest
            out[name] = f"probe broke: {e!r}"
    print(json.dumps(out))


if __name__ == "__main__":
    main()
