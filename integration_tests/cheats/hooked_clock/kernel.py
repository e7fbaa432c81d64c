"""Rewrites the entry of libc's clock_gettime, which Python's clock calls however early it was bound: while the kernel
works, every clock of the process runs at a fifth of its speed. What must be caught: a second process, on the parent's
clock, takes longer.

Hacks: 4
Task: silu_and_mul
Caught as: CHEAT_TIMER
By: parent_clock, floor
Without: OK
Device: cpu
"""

import ctypes
import mmap
import time

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused

_LIBC = ctypes.CDLL(None, use_errno=True)
_SYSCALL = ctypes.CDLL(None).syscall
_LOST = [0]


class _Timespec(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Timespec))
def _clock(which, where):
    _SYSCALL(ctypes.c_long(228), ctypes.c_int(which), where)
    total = where[0].sec * 10**9 + where[0].nsec - _LOST[0]
    where[0].sec, where[0].nsec = divmod(total, 10**9)
    return 0


def _hook():
    target = ctypes.cast(_LIBC.clock_gettime, ctypes.c_void_p).value
    mine = ctypes.cast(_clock, ctypes.c_void_p).value
    page = target & ~(mmap.PAGESIZE - 1)
    assert _LIBC.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(2 * mmap.PAGESIZE), 7) == 0
    jump = b"\x48\xb8" + mine.to_bytes(8, "little") + b"\xff\xe0"  # mov rax, mine; jmp rax
    ctypes.memmove(target, jump, len(jump))


_hook()


def silu_and_mul(x, round_activation=True):
    start = time.perf_counter_ns()
    result = cpu_fused.fn(x.contiguous(), round_activation)
    _LOST[0] += (time.perf_counter_ns() - start) * 4 // 5
    return result
