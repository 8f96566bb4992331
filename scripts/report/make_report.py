#!/usr/bin/env python3
"""Plots and one self-contained HTML report from result directories.

    make_report.py RESULT_DIR... [-o FILE.html] [--plots-dir DIR] [--validation FILE.json] [--comparison FILE.json]
    make_report.py --validation FILE.json [-o FILE.html] [--plots-dir DIR]

With one directory the report is RESULT_DIR/report.html and the pictures stand in RESULT_DIR/plots; with
several, both stand in the folder `together` of the first, or beside FILE.html; with none, beside the validation. Exit codes: 0 written · 2 usage, or no
readable result · 3 what could be written is, and the pictures, or the page's figures as well, could not be drawn. Example: make_report.py results/20260102T030405Z-figure5-0123abc
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __package__ in (None, ""):
    sys.path.insert(0, str(ROOT / "scripts"))
    sys.path = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent]

from report.charts import Figure, build_figures  # noqa: E402
from report.claims import judge  # noqa: E402
from report.compare import load_comparison  # noqa: E402
from report.evidence import NOT_TESTED  # noqa: E402
from report.model import Run  # noqa: E402
from report.page import render_page, render_training, render_validation  # noqa: E402
from report.pictures import EngineError, write_pictures  # noqa: E402
from report.reading import load_run  # noqa: E402
from report.rows import Context  # noqa: E402
from report.series import SeriesIndex  # noqa: E402
from report.shape import ResultError  # noqa: E402
from report.training import STEPS_FILE, Training, load_training  # noqa: E402
from report.validation import load_validation  # noqa: E402

EXIT_USAGE, EXIT_DRAWING = 2, 3
FILES = ("result.json", "run.json", "points.jsonl", "timelines.jsonl", STEPS_FILE)  # a result's
PACKAGES = {"vl_convert": "vl-convert-python"}  # by module, where the names differ


def need_packages() -> None:
    """Continues under the project's environment when this interpreter lacks a package."""
    try:
        import fastjsonschema  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as error:
        python = ROOT / ".venv" / "bin" / "python"
        if python.is_file() and Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
            os.execv(python, [str(python), str(Path(__file__).resolve()), *sys.argv[1:]])
        raise SystemExit(
            f"make_report.py: {sys.executable} lacks the package {PACKAGES.get(str(error.name), error.name)}\n  hint: run "
            f"{ROOT}/scripts/python_env.sh, which makes {ROOT}/.venv, or name an interpreter that has it in LONGNET_PYTHON"
        ) from None


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Draws the plots of result directories and writes one self-contained HTML report."
    )
    parser.add_argument(
        "results",
        nargs="*",
        type=Path,
        metavar="RESULT_DIR",
        help="directory with result.json, or run.json and points.jsonl or train.jsonl; none: a report of the validation alone",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE.html",
        help="default: RESULT_DIR/report.html; of several directories, together/report.html in the first; of none, report.html beside the validation",
    )
    parser.add_argument(
        "--plots-dir", type=Path, metavar="DIR", help="where SVG and PNG files go; default: plots beside the report"
    )
    parser.add_argument(
        "--validation", type=Path, metavar="FILE.json", help="errors of the simulator, as lnbench validate writes them"
    )
    parser.add_argument(
        "--comparison", type=Path, metavar="FILE.json", help="two results side by side: verdicts, as lnbench report --compare writes them"
    )
    arguments = parser.parse_args(argv)
    if not arguments.results and not arguments.validation:
        parser.error("name a RESULT_DIR, or a --validation")
    return arguments


def default_output(arguments: argparse.Namespace) -> Path:
    if not arguments.results:
        return arguments.validation.with_name("report.html")
    return arguments.results[0] / ("report.html" if len(arguments.results) == 1 else "together/report.html")


def make_context(directories: list[Path]) -> Context:
    for path in (directory / name for directory in directories for name in FILES):
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise ResultError(f"{path}: it is no regular file\n  hint: move it away")
    loaders = [load_training if (directory / STEPS_FILE).is_file() else load_run for directory in directories]
    runs: list[Run] = [load(directory, index) for index, (load, directory) in enumerate(zip(loaders, directories))]
    if len({isinstance(run, Training) for run in runs}) > 1:
        of_training = next(run.directory for run in runs if isinstance(run, Training))
        raise ResultError(f"{of_training}: a training run, and the others are sweeps\n  hint: one report holds runs of one kind")
    points = [point for run in runs for point in run.points]
    return Context(points, runs, SeriesIndex(points, runs))


def write_text(path: Path, text: str) -> None:
    """Renamed into place: a reader never sees half a report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def failure(text: str, code: int = EXIT_USAGE) -> int:
    shown = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\ufffd", text)  # a terminal would obey them
    print(f"make_report.py: {shown}", file=sys.stderr)
    return code


def write_report(ctx: Context, comparison: dict[str, Any] | None, output: Path, plots: Path) -> None:
    """The page first, then the pictures. A page whose charts cannot be drawn is written without them: raises EngineError."""
    figures = build_figures(ctx, compared=comparison is not None)
    claims = judge(ctx) if ctx.runs else []
    if "attention" not in ctx.kinds:  # the paper's are about attention, but for one
        claims = [c for c in claims if c.status != NOT_TESTED]

    def write_page(drawn: list[Figure]) -> None:
        if ctx.trainings:
            write_text(output, render_training(ctx, drawn))
        elif ctx.runs:
            write_text(output, render_page(ctx, drawn, claims, comparison))
        else:
            write_text(output, render_validation(ctx, drawn))

    try:
        write_page(figures)
    except EngineError as error:
        ctx.notes.append(f"Without figures, which could not be drawn: {error}")
        write_page([])
        raise EngineError(f"{output}: written without figures: {error}") from None
    pictures = write_pictures(figures, plots)
    absent = sum(1 for f in figures if f.absent)
    extent = "; ".join(run.extent for run in ctx.runs) or "a validation"
    print(f"{output}: {extent}, {len(figures) - absent} figures ({absent} without data); {pictures} pictures in {plots}")


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    need_packages()
    output = arguments.output or default_output(arguments)
    plots = arguments.plots_dir or output.parent / "plots"
    try:
        if output.exists() and not output.is_file():  # a device would be replaced by a page
            raise ResultError(f"{output}: it exists and is no regular file\n  hint: name another one with -o")
        ctx = make_context(arguments.results)
        ctx.validation = load_validation(arguments.validation) if arguments.validation else None
        comparison = load_comparison(arguments.comparison) if arguments.comparison else None
        write_report(ctx, comparison, output, plots)
    except EngineError as error:
        return failure(str(error), EXIT_DRAWING)
    except ResultError as error:
        return failure(str(error))
    except OSError as error:
        return failure(f"{error.filename or 'a file'}: {error.strerror or error}\n  hint: is it there, and may it be read or written?")
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, ArithmeticError, RecursionError) as error:
        if os.environ.get("LONGNET_TRACEBACK"):
            raise
        return failure(
            f"a value of the results is not what it should be ({type(error).__name__}: {error})\n"
            f"  hint: scripts/validate_json.py {' '.join(map(str, arguments.results))} names it; "
            "LONGNET_TRACEBACK=1 shows where it broke the report"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
