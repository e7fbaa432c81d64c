"""`fk e2e ENGINE`: the whole engine with and without kernels."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path

from fk_plugin.cli._output import Progress, check_json

HELP = "run vLLM or SGLang with and without kernels: throughput, accuracy, proof of use"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    parser.add_argument("engine", help="vllm or sglang")
    parser.add_argument("--model", required=True, metavar="PATH|smollm2|dummy:CONFIG", help="the model to serve")
    parser.add_argument("--kernels", default=os.environ.get("FK_KERNELS", ""), metavar="TASK=KERNEL,...",
                        help="the kernels to compare with the engine's own (default: $FK_KERNELS)")  # fmt: skip
    parser.add_argument("--requests", type=int, default=8, metavar="N", help="requests sent at once (8)")
    parser.add_argument("--input-len", type=int, default=64, metavar="TOKENS", help="prompt tokens each (64)")
    parser.add_argument("--output-len", type=int, default=32, metavar="TOKENS", help="generated tokens each (32)")
    parser.add_argument("--starts", type=int, default=2, metavar="N", help="engine starts on each side, in turn (2)")
    parser.add_argument("--passes", type=int, default=3, metavar="N", help="timed passes of each start (3)")
    parser.add_argument("--eager", action="store_true", help="turn the engine's compiler and graphs off")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--max-batched-tokens", type=int, default=1024, metavar="N",
                        help="most tokens in one step, on both sides (1024)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the result as JSON")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep engine logs and counters there")


def run(args: argparse.Namespace) -> int:
    """Carry it out; 0 when every check holds, else 1."""
    from fk_plugin.e2e import report
    from fk_plugin.e2e.run import Request, run

    check_json(args.json)
    folder = (args.keep or Path(tempfile.mkdtemp(prefix="fk-e2e-"))).absolute()
    request = Request(
        engine=args.engine,
        model=args.model,
        kernels=args.kernels,
        requests=args.requests,
        input_len=args.input_len,
        output_len=args.output_len,
        starts=args.starts,
        passes=args.passes,
        eager=args.eager,
        dtype=args.dtype,
        max_batched_tokens=args.max_batched_tokens,
        folder=folder,
    )
    progress = Progress()
    try:
        result = run(request, progress)
    finally:
        progress.done()
    report.show(result)
    if args.json is not None:
        args.json.write_text(json.dumps(report.to_json(result), indent=2, allow_nan=False) + "\n")
    if result.passed and args.keep is None:
        shutil.rmtree(folder)  # after a failure the logs stay, and the message or a check names them
    return 0 if result.passed else 1
