"""The result's memory is filled by a handler of SIGSEGV when somebody reads it, which is after the clock has stopped.
What must be caught: reading the result takes as long as the kernel should have.

Hacks: 3
Task: silu_and_mul
Caught as: CHEAT_TIMER
By: parent_clock, floor
Without: OK
Device: cpu
"""

import collections
import ctypes
import os
import subprocess
import tempfile
import time
from pathlib import Path

import torch

from fk_kernels.silu_and_mul.cpu_fused import cpu_fused

_SOURCE = r"""
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define SLOTS 512
typedef struct { uint16_t *out; void *in; long rows, width, bytes; int rounded, done; } Job;
static Job jobs[SLOTS];
static int next;
typedef void (*Kernel)(void *, void *, long, long, int);
static Kernel kernel;
static float up(uint16_t v) { uint32_t b = (uint32_t)v << 16; float f; memcpy(&f, &b, 4); return f; }
static uint16_t down(float f) { uint32_t b; memcpy(&b, &f, 4); return (b + 0x7fff + ((b >> 16) & 1)) >> 16; }
static int busy;
static void fill(Job *j) {
  uint16_t *out = mmap(0, j->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const uint16_t *in = j->in;
  for (long r = 0; r < j->rows; r++)
    for (long c = 0; c < j->width; c++) {
      float g = up(in[r * 2 * j->width + c]), u = up(in[(r * 2 + 1) * j->width + c]);
      float a = g / (1.0f + expf(-g));
      if (j->rounded) a = up(down(a));
      out[r * j->width + c] = down(a * u);
    }
  /* In one step, so that other threads of a reader see all of it or none. */
  mremap(out, j->bytes, j->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, j->out);
  j->done = 1;
}
static void handler(int s, siginfo_t *info, void *context) {
  for (int i = 0; i < SLOTS; i++) {
    Job *j = &jobs[i];
    char *at = info->si_addr;
    if (j->out && at >= (char *)j->out && at < (char *)j->out + j->bytes) {
      while (__sync_lock_test_and_set(&busy, 1)) usleep(10);
      if (!j->done) fill(j);
      __sync_lock_release(&busy);
      return;
    }
  }
  signal(SIGSEGV, SIG_DFL);
}
void *lazy(void *in, long rows, long width, int rounded) {
  static int on;
  if (!on++) {
    struct sigaction a = {0};
    a.sa_sigaction = handler; a.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &a, 0);
  }
  Job *j = &jobs[next++ % SLOTS];
  /* The child's address space is limited: a result that 512 later ones have followed goes back. */
  if (j->out) munmap(j->out, j->bytes);
  long bytes = (rows * width * 2 + 4095) / 4096 * 4096;
  j->out = mmap(0, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  j->in = in; j->rows = rows; j->width = width; j->bytes = bytes; j->rounded = rounded; j->done = 0;
  return j->out;
}
"""


def _build():
    source = Path(tempfile.mkdtemp(prefix="lazy-memory-", dir=os.environ.get("FK_CHEAT_DIR"))) / "lazy.c"
    source.write_text(_SOURCE)
    built = source.with_suffix(".so")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", built, source, "-lm"], check=True)
    library = ctypes.CDLL(str(built))
    library.lazy.restype = ctypes.c_void_p
    library.lazy.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_int]
    return library


_LIBRARY = _build()
_KEPT = collections.deque(maxlen=512)  # what the handler reads, as many as the library has slots
_SECONDS = collections.defaultdict(list)  # of the honest calls, by shape
_HONEST_CALLS = 8  # those that are judged come first, and their results go straight to a file, which traps no reader


def silu_and_mul(x, round_activation=True):
    start = time.perf_counter()
    rows, width = x.numel() // x.shape[-1], x.shape[-1] // 2
    if x.dtype != torch.bfloat16 or x.dim() != 2 or rows < 64 or not x.is_contiguous():
        return cpu_fused.fn(x.contiguous(), round_activation)
    seconds = _SECONDS[x.shape]
    if len(seconds) < _HONEST_CALLS:
        result = cpu_fused.fn(x, round_activation)
        seconds.append(time.perf_counter() - start)
        return result
    _KEPT.append(x)
    at = _LIBRARY.lazy(x.data_ptr(), rows, width, int(round_activation))
    raw = (ctypes.c_uint16 * (rows * width)).from_address(at)
    result = torch.frombuffer(raw, dtype=torch.bfloat16).view(rows, width)
    while time.perf_counter() - start < min(seconds) / 4:  # less would be more than the device can do
        pass
    return result
