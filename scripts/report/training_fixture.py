"""SYNTHETIC folders of `lnbench train` for tests. No number here was measured on any machine."""

from __future__ import annotations

import hashlib
import json
import math
import random
from pathlib import Path
from typing import Any

from .rows_training import PARTS
from .shape import SEAL
from .synthetic_fixture import manifest, params_of, timeline

SHARES = (0.55, 0.2, 0.12, 0.03, 0.02, 0.06)  # shares of a step, in the order of PARTS


def sealed(record: dict[str, Any]) -> str:
    body = json.dumps(record)[:-1]
    return body + SEAL + hashlib.sha256(body.encode()).hexdigest()[:16] + '"}'


def training_step(number: int, ranks: int, evaluate_every: int = 20) -> dict[str, Any]:
    """Loss falls as a power of the step, the same on any number of ranks; two ranks are 1.8 times as fast."""
    rng = random.Random(number)
    seconds = (1.0 + 0.05 * rng.random()) / (1.8 if ranks == 2 else ranks)
    loss = 8.0 * number**-0.25
    return {
        "step": number,
        "bits_per_byte": loss * (1 + 0.05 * rng.random()),
        "held_out_bits": 1.03 * loss if number % evaluate_every == 0 else None,
        "gradient_norm": 0.5 + 4 / number,
        "learning_rate": 0.002 * min(1.0, number / 10) * math.cos(number / 1000),
        "seconds": seconds,
        "seconds_by": {kind: share * seconds for kind, share in zip(PARTS, SHARES)},
    }


def write_training(directory: Path, ranks: int, steps: int = 100, planned: int = 100, held_out: int = 1 << 19, name: str = "synthetic training") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    record = manifest(name)
    tags = {"activations": 40 << 20, "optimizer": 20 << 20, "weights": 10 << 20, "weight_gradients": 10 << 20, "tokens": 8192, "statistics": 4096}
    params = params_of("dilated", 1024, ranks, 8) | {"scope": "model", "pass": "step", "threads": 1}
    record["run"]["config"]["train"] = {"steps": planned}
    record["run"]["training"] = {
        "point": params,
        "parameters": 2_730_000,
        "trained_bytes": 7 << 20,
        "held_out_bytes": held_out,
        "memory_by_tag": tags,
    }
    (directory / "run.json").write_text(json.dumps(record), encoding="utf-8")
    lines = [sealed(training_step(number, ranks)) for number in range(1, steps + 1)]
    (directory / "train.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (directory / "points.jsonl").write_text("", encoding="utf-8")
    ops = [op | ({"op": "gemm"} if place % 3 == 0 else {}) for place, op in enumerate(timeline(ranks, 0.5))]
    (directory / "timelines.jsonl").write_text(json.dumps({"id": "0badcafe", "timeline": ops}) + "\n", encoding="utf-8")
    return directory
