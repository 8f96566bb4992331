"""Points and runs as typed, forgiving views of their records (reading.py). Fields that are missing or not finite read as None."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .units import number, plural

SURE_LEVEL = 0.9  # the least level of a median's interval, where a ratio or an exponent takes it: five samples have 94 %
LAYER, MODEL = "layer", "model"  # params.scope of one layer around attention, and of a training step
SOURCES = ("measured", "replayed", "extrapolated", "simulated")  # strongest evidence first
STEP = "step"  # the pass of a training step
FORWARD, BACKWARD, BOTH = PASSES = ("forward", "backward", "forward_backward")
PATTERNS = ("dilated", "dense", "sparse")  # in the order of legends and tables


@dataclass(frozen=True)
class Point:
    """One point of one run; `raw` is the record as written."""

    run: int  # index into the list of runs of this report
    raw: dict[str, Any]

    def get(self, path: str) -> Any:
        node: Any = self.raw
        for key in path.split("."):
            node = node.get(key) if isinstance(node, dict) else None
        return node

    def num(self, path: str) -> float | int | None:
        return number(self.get(path))

    def text(self, path: str) -> str:
        value = self.get(path)
        return "" if value is None else str(value)

    @cached_property
    def source(self) -> str:
        return self.text("source") or "unknown"

    @cached_property
    def status(self) -> str:
        return self.text("status") or "unknown"

    @cached_property
    def ok(self) -> bool:
        return self.status == "ok"

    @cached_property
    def mode(self) -> str:
        """`real`, `virtual` or `simulated`."""
        return self.text("params.mode")

    @cached_property
    def pattern(self) -> str:
        """`dense`, `dilated` or `sparse`: which row of the paper's comparison the point belongs to."""
        return self.text("params.pattern")

    @cached_property
    def algorithm(self) -> str:
        return self.text("params.algorithm") or "unknown"

    @cached_property
    def seq_len(self) -> int | None:
        value = self.num("params.seq_len")
        return int(value) if value is not None and value > 0 else None

    @cached_property
    def ranks(self) -> int:
        return int(self.num("params.ranks") or 1)

    @cached_property
    def batch(self) -> int:
        return int(self.num("params.batch") or 1)

    @cached_property
    def replicas(self) -> int:
        """Groups of ranks that each took their share of the batch; most points have one."""
        return int(self.num("params.replicas") or 1)

    @cached_property
    def head_groups(self) -> int:
        """Ranks with the same tokens, which split heads."""
        return int(self.num("params.head_groups") or 1)

    @cached_property
    def compute_pass(self) -> str:
        """One of PASSES: most points, and all older ones, are forward."""
        return self.text("params.pass") or FORWARD

    @property
    def pass_name(self) -> str:
        """ "forward", "forward and backward", "step"."""
        return self.compute_pass.replace("_", " and ")

    @property
    def other_pass(self) -> str:
        """ " · backward": behind the name of a point that is no forward, and no step."""
        return "" if self.compute_pass in (FORWARD, STEP) else f" · {self.pass_name}"

    @cached_property
    def of_model(self) -> bool:
        """A training step of a model, or a pass of one or of a layer of it, and not attention alone."""
        return self.text("params.scope") in (LAYER, MODEL)

    @cached_property
    def of_layer(self) -> bool:
        return self.text("params.scope") == LAYER

    @cached_property
    def pass_order(self) -> int:
        return PASSES.index(self.compute_pass) if self.compute_pass in PASSES else len(PASSES)

    @cached_property
    def group_ranks(self) -> int:
        """Ranks that share a sequence."""
        return max(1, self.ranks // self.replicas // self.head_groups)

    @cached_property
    def group_batch(self) -> int:
        """Sequences that a group works on."""
        return max(1, self.batch // self.replicas)

    @cached_property
    def branches(self) -> list[dict[str, Any]]:
        value = self.get("params.branches")
        return [b for b in value if isinstance(b, dict)] if isinstance(value, list) else []

    @cached_property
    def samples(self) -> list[float]:
        value = self.get("timing.samples_s")
        items = [number(v) for v in value] if isinstance(value, list) else []
        return [v for v in items if v is not None and v > 0]

    @cached_property
    def median_s(self) -> float | None:
        value = self.num("timing.median_s")
        return value if value is not None and value > 0 else None

    @cached_property
    def interval_s(self) -> tuple[float, float] | None:
        """Interval of the median, of five samples or more; of a simulated time its band."""
        low, high = (self.num(f"timing.ci_{end}_s") for end in ("low", "high"))
        known = self.source == "simulated" or (self.num("timing.ci_level") or 0) >= SURE_LEVEL
        return (low, high) if low and high and known else None

    def times(self, other: Point) -> tuple[float, tuple[float, float] | None]:
        """This point's time over another's, and between which ratios the intervals of both leave it."""
        ratio = (self.median_s or 0.0) / (other.median_s or 1.0)
        known = self.interval_s and other.interval_s and self is not other
        return ratio, (self.interval_s[0] / other.interval_s[1], self.interval_s[1] / other.interval_s[0]) if known else None

    @cached_property
    def full_s(self) -> float | None:
        """The pass that ablations and phases are parts of: timed in turn with them, else the median."""
        return self.num("ablations.full_s") or self.median_s

    @cached_property
    def exposed_s(self) -> float | None:
        """Exposed communication: full minus compute only, signed. Below zero it is noise."""
        full, compute = (self.num(f"ablations.{key}") for key in ("full_s", "compute_only_s"))
        return self.num("phases.exposed_communication_s") if full is None or compute is None else full - compute

    @cached_property
    def in_turn(self) -> bool:
        """One device walked all ranks: its time is their sum. A replayed point's is that of the slowest rank."""
        return self.mode == "virtual" and self.source != "replayed"

    @cached_property
    def shares_cores(self) -> bool:
        """More threads of its ranks than cores: its time tells how the system shares them."""
        cores = self.num("metrics.usable_cores")
        return cores is not None and not self.in_turn and cores < self.ranks * (self.num("params.threads") or 1)

    @cached_property
    def shares_gpu(self) -> bool:
        """Fewer GPUs than ranks: its time tells how a GPU is shared."""
        devices = self.num("metrics.devices")
        return devices is not None and not self.in_turn and devices < self.ranks

    @cached_property
    def throttled(self) -> bool:
        """A GPU slowed its clocks down, for its power, its temperature or the hardware's sake."""
        return (self.num("metrics.device_throttled") or 0) > 0

    @cached_property
    def time_decides(self) -> bool:
        """Its time may decide a claim."""
        return bool(self.median_s) and not (self.shares_cores or self.shares_gpu or self.throttled)

    @cached_property
    def beyond_kernel_table(self) -> bool:
        """A price of its simulated time is a guess: the cluster file has no figure of that size."""
        return self.source == "simulated" and bool(self.num("metrics.beyond_kernel_table"))

    @cached_property
    def time_per_sequence_s(self) -> float | None:
        """Median of one pass divided by the batch: comparable between batch sizes."""
        return None if self.median_s is None else self.median_s / self.batch

    def sent(self, what: str) -> float | None:
        """`bytes` or `messages` of a rank: counted by the transport, and modelled where a library's collectives moved them."""
        counted = self.num(f"comm.counted_{what}_per_rank")
        return None if counted is None else counted + (self.num(f"comm.modelled_{what}_per_rank") or 0)

    def value(self, path: str) -> float | int | None:
        """A number of a point that ran and was right; None otherwise."""
        return self.num(path) if self.ok else None


@dataclass
class Run:
    directory: Path
    record: dict[str, Any]  # result.json, or run.json with an empty summary
    points: list[Point]
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)

    def get(self, path: str) -> Any:
        node: Any = self.record
        for key in path.split("."):
            node = node.get(key) if isinstance(node, dict) else None
        return node

    @property
    def name(self) -> str:
        return str(self.get("run.name") or self.directory.name)

    @property
    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for point in self.points:
            counts[point.status] = counts.get(point.status, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (item[0] != "ok", item[0])))

    @property
    def facts(self) -> list[tuple[str, object]]:
        """Facts on the run's card beside those that every run has."""
        return []

    @property
    def extent(self) -> str:
        """ "24 of 30 planned points, 9 of them left out"."""
        planned = number(self.get("summary.planned")) or number(self.get("run.planned"))
        left_out = sum(n for status, n in self.counts.items() if status.startswith("skipped"))
        text = f"{len(self.points):,} of {planned:,} planned points" if planned else plural(len(self.points), "point")
        return text + (f", {left_out:,} of them left out" if left_out else "")

    @property
    def verdict(self) -> str:
        """The run's own verdict; else that of its points."""
        if self.interrupted:
            return "interrupted"
        stated = self.get("summary.verdict")
        if stated:
            return str(stated)
        bad = {"check_failed", "error", "oom", "timeout"} & set(self.counts)
        return "failed" if bad else ("ok" if self.counts.get("ok") else "no results")


def run_names(runs: list[Run]) -> list[str]:
    """ "run 1 (base)", "run 2 (later)": by the config, the folder, the host or the begin, the first that tells all apart."""
    known = [[run.name, run.directory.resolve().name, run.get("environment.hostname"), run.get("run.started_utc")] for run in runs]
    telling = [names for names in zip(*known) if len(set(names)) == len(runs) and all(names)]
    return [f"run {place}" + (f" ({telling[0][place - 1]})" if telling else "") for place in range(1, len(runs) + 1)]
