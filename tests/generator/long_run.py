"""Run many generated programs through the tool: `python -m tests.generator.long_run --count 20000`.

Prints how many were found and fixed, and each wrong rewrite, shrunk. Exit status 1 if there was any.
"""

from __future__ import annotations

import argparse
import collections
import difflib
import multiprocessing
import sys
import time

from tests.generator.programs import generate
from tests.generator.trial import Trial, smallest, try_program


def one(job: tuple[int, bool]) -> tuple[int, Trial, tuple[str, ...], bool, str]:
    import torch

    torch.set_num_threads(1)
    seed, signatures = job
    program = generate(seed)
    trial = try_program(program, signatures)
    return seed, trial, program.traits, program.attention, program.trap


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--signatures-every", type=int, default=3, metavar="N", help="other dtypes and autocast for every Nth program"
    )
    parser.add_argument("--shrink", type=int, default=5, metavar="N", help="problems of each kind to shrink and print")
    parser.add_argument(
        "--blockers", action="store_true", help="also count the blockers and the traits that are never fixed"
    )
    options = parser.parse_args()
    begun = time.time()
    counts: collections.Counter[str] = collections.Counter()
    problems: dict[str, list[int]] = collections.defaultdict(list)
    blockers: collections.Counter[str] = collections.Counter()
    by_trait: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    missed: list[int] = []
    jobs = [
        (seed, seed % options.signatures_every == 0) for seed in range(options.start, options.start + options.count)
    ]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for seed, trial, traits, attention, trap in pool.imap_unordered(one, jobs, chunksize=20):
            kind = "plain" if attention and not trap else "trap"
            counts[f"{kind} programs"] += 1
            counts[f"{kind} found"] += bool(trial.codes)
            counts[f"{kind} fixed safely"] += trial.safe
            counts[f"{kind} fixed unsafely"] += trial.unsafe and not trial.safe
            counts["runs compared"] += trial.executed
            if attention and not trap and not trial.codes:
                missed.append(seed)
            for blocker in trial.blockers:
                blockers[blocker] += 1
            for trait in traits:
                by_trait[trait]["programs"] += 1
                by_trait[trait]["found"] += bool(trial.codes)
                by_trait[trait]["fixed"] += trial.safe or trial.unsafe
            if trial.problem:
                problems[trial.problem].append(seed)
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    print(f"seconds: {time.time() - begun:.0f}")
    print(f"plain programs not found: {len(missed)}, seeds {sorted(missed)[:20]}")
    if options.blockers:
        for text, count in blockers.most_common(40):
            print(f"  blocker x{count}: {text}")
        for trait, c in sorted(by_trait.items(), key=lambda item: item[1]["fixed"] / item[1]["programs"]):
            print(f"  {trait}: found {c['found']}, fixed {c['fixed']} of {c['programs']}")
    for problem, seeds in problems.items():
        print(f"\n{problem}: {len(seeds)}, seeds {sorted(seeds)[:30]}")
        shown = set()
        for seed in sorted(seeds)[: options.shrink]:
            if try_program(generate(seed)).problem != problem:
                print(f"--- seed {seed}: not seen again")
                continue
            program = smallest(generate(seed), problem)
            if program.text in shown:
                continue
            shown.add(program.text)
            trial = try_program(program)
            print(f"--- seed {seed}, shrunk\n{program.text}\n--- {trial.detail}")
            if trial.fixed:
                lines = difflib.unified_diff(program.text.splitlines(), trial.fixed.splitlines(), lineterm="", n=0)
                print("\n".join(list(lines)[2:]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
