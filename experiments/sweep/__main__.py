"""Runs a sweep in W&B's format on this machine, without an account.

python -m experiments.sweep experiments/sweeps/step_size.yaml --workers 2 -- --trainer.max_epochs 3

What stands after -- goes to every run. The same command goes on with a sweep that was interrupted.
"""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.files import duration
from experiments.sweep.configuration import Sweep
from experiments.sweep.plot import plot
from experiments.sweep.results import Results, listed
from experiments.sweep.run import PATIENCE, Job, Run, json_path

POLL = 0.1
"""Seconds between two looks at the runs."""


def main(
    file: Path,
    output: Path | None = None,
    runs: int | None = None,
    workers: int = 1,
    repeat_failed: bool = False,
    arguments: Sequence[str] = (),
) -> list[Run]:
    """Runs a sweep to its end, and returns all of its runs."""
    sweep = Sweep.read(file)
    counts = [count for count in (runs or sweep.run_cap, sweep.size) if count is not None]
    if not counts:
        method = sweep.settings["method"]
        raise SystemExit(f"{file} has no end, its method is {method}: give --runs, or run_cap in the file")
    results = Results(output or Path("outputs/sweeps") / file.stem, sweep, arguments)
    waiting = [run for run in results.runs if run.state == "running" or (repeat_failed and run.state == "failed")]
    for run in waiting:
        run.state = "running"
    ended = len(results.runs) - len(waiting)
    if ended:
        print(f"{results.folder} has {ended} of {min(counts)} runs: going on", flush=True)
    jobs: list[Job] = []
    try:
        _work(results, waiting, jobs, min(counts), workers, arguments)
    except KeyboardInterrupt:
        raise SystemExit("interrupted: the same command goes on with this sweep") from None
    finally:
        _end(jobs)
        results.lock.close()
    _conclude(results)
    return results.runs


def _work(
    results: Results, waiting: list[Run], jobs: list[Job], limit: int, workers: int, arguments: Sequence[str]
) -> None:
    """Keeps the workers busy until all runs have ended."""
    sweep = results.sweep
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    while True:
        while len(jobs) < workers:
            run = waiting.pop(0) if waiting else _next(results, limit)
            if run is None:
                break
            results.save()  # so that it is run again if this process is killed
            command = sweep.command(run.parameters, json_path(results.folder / "runs", run))
            jobs.append(Job(run, [*command, *arguments], results.folder / "runs", threads))
        if not jobs:
            break
        time.sleep(POLL)
        if any([job.update(sweep.metric) for job in jobs]):  # each of them
            stopped = sweep.to_stop([run.for_engine(sweep.metric) for run in results.runs])
            for job in jobs:
                if job.run.name in stopped and job.stopped is None:
                    job.stop()
        for job in [job for job in jobs if job.ended(sweep.metric)]:
            jobs.remove(job)
            results.save()
            _report(results, job, limit, workers)


def _next(results: Results, limit: int) -> Run | None:
    """A new run, if there is to be one."""
    sweep = results.sweep
    if len(results.runs) >= limit or sweep.reached([score for score, _ in results.scored()]):
        return None
    parameters = sweep.propose([run.for_engine(sweep.metric) for run in results.runs])
    if parameters is None:
        return None
    results.runs.append(Run(len(results.runs) + 1, parameters))
    return results.runs[-1]


def _end(jobs: Sequence[Job]) -> None:
    """Ends all processes; their runs are to be run again."""
    for job in jobs:
        job.stop()
    deadline = time.monotonic() + PATIENCE + 1
    while any(job.process.poll() is None for job in jobs) and time.monotonic() < deadline:
        time.sleep(POLL)
        for job in jobs:
            job.stop()


def _report(results: Results, job: Job, limit: int, workers: int) -> None:
    """A line on a run that has ended."""
    run, sweep = job.run, results.sweep
    known = [other for other in results.runs if other.state != "running"]
    if run.state == "failed":
        outcome = f"failed: {run.error} ({job.log})"
    else:
        score = f"{sweep.metric} {sweep.best(run.history):.4f}" if run.history else f"no {sweep.metric}"
        early = f", stopped early after {len(run.history)}" if run.state == "stopped" else ""
        outcome = f"{score}{early}, {duration(run.seconds)}"
    seconds = [other.seconds for other in known if other.state != "failed"]
    left = limit - len(known)
    remaining = ""
    if left > 0 and seconds:
        remaining = f"; about {duration(sum(seconds) / len(seconds) * left / min(workers, left))} left"
    print(f"run {run.number} of {limit}: {listed(run.parameters)}: {outcome}{remaining}", flush=True)


def _conclude(results: Results) -> None:
    """The best run, its arguments, and the picture."""
    scores = results.scored()
    failed = sum(run.state == "failed" for run in results.runs)
    if failed:
        print(f"{failed} of {len(results.runs)} runs failed; --repeat-failed runs them again")
    if not scores:
        raise SystemExit(f"no run has a {results.sweep.metric}: see the outputs in {results.folder / 'runs'}")
    score, best = scores[0]
    print(f"best: run {best.number}, {results.sweep.metric} {score:.4f}, in {best.folder}; its arguments:")
    for name, value in best.parameters.items():
        print(f"  {shlex.quote(f'--{name}={value}')}")
    picture = results.folder / "parallel_coordinates.png"
    plot(results.sweep.metric, scores, picture)
    print(f"all runs are in {results.table} and {picture}")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of 1 or more")
    return int(text)


def parse(given: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    own, further = list(given), []
    if "--" in own:
        at = own.index("--")
        own, further = own[:at], own[at + 1 :]
    parser = argparse.ArgumentParser(
        prog="python -m experiments.sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="a sweep, as in experiments/sweeps")
    parser.add_argument("--output", type=Path, help="folder of the sweep, outputs/sweeps/NAME by default")
    parser.add_argument("--runs", type=_count, help="most runs, in place of the file's run_cap")
    parser.add_argument("--workers", type=_count, default=1, help="runs at once; they share the cores")
    parser.add_argument("--repeat-failed", action="store_true", help="run failed ones again")
    return argparse.Namespace(**vars(parser.parse_args(own)), arguments=further)


if __name__ == "__main__":
    main(**vars(parse(sys.argv[1:])))
