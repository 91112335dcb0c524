#!/usr/bin/env python3
"""Score `attn-advisor check` against labelled in-place sites.

usage: score.py SITES.jsonl CORPUS_DIR [--command "attn-advisor check"] [--misses N]

A site is one line of a public package (`package`/`file`:`line`) with a verdict: breaks_backward, view_hazard (a result of chunk or a leaf is
changed), mutates_argument, safe, no_grad_only or parameter_init. A finding of ATN310 or ATN501 to ATN506 hits a site when the line lies in it. Prints
  hazards       sites that break backward or are view hazards and are found / all of them
  mutations     sites that change an argument and are found / all of them
  false alarms  other sites that are found / all of them
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
from pathlib import Path

CODES = "ATN310,ATN5"
GROUPS = {
    "hazards": ("breaks_backward", "view_hazard"),
    "mutations": ("mutates_argument",),
    "false alarms": ("safe", "no_grad_only", "parameter_init"),
}


def findings(corpus: Path, files: list[str], command: str) -> list[dict]:
    paths = [str(corpus / file) for file in files]
    options = ["--isolated", "--preview", "--no-cache", "--select", CODES, "--output-format", "json"]
    done = subprocess.run([*shlex.split(command), *options, *paths], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{command}: {done.stderr}")
    return json.loads(done.stdout)


def score(sites: list[dict], found: list[dict], corpus: Path) -> dict[str, tuple[int, int, list[dict]]]:
    """Group -> (sites found, sites, the sites on the wrong side)."""
    lines: dict[str, list[tuple[int, int]]] = {}
    for finding in found:
        span = finding["location"]["row"], finding["end_location"]["row"]
        lines.setdefault(finding["filename"], []).append(span)
    result = {}
    for group, verdicts in GROUPS.items():
        members = [site for site in sites if site["verdict"] in verdicts]
        hit = []
        for site in members:
            spans = lines.get(str((corpus / site["package"] / site["file"]).resolve()), [])
            if any(first <= site["line"] <= last for first, last in spans):
                hit.append(site)
        wrong = hit if group == "false alarms" else [site for site in members if site not in hit]
        result[group] = len(hit), len(members), wrong
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sites", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--command", default="attn-advisor check")
    parser.add_argument("--misses", type=int, default=10)
    options = parser.parse_args()
    sites = [json.loads(line) for line in options.sites.read_text().splitlines()]
    here = [site for site in sites if (options.corpus / site["package"] / site["file"]).is_file()]
    files = sorted({f"{site['package']}/{site['file']}" for site in here})
    corpus = options.corpus.resolve()
    for group, (hit, total, wrong) in score(here, findings(corpus, files, options.command), corpus).items():
        print(f"{group:14} {hit}/{total} = {hit / total if total else 0:.3f}")
        for site in wrong[: options.misses]:
            print(f"    {site['package']}/{site['file']}:{site['line']} {site['function']} ({site['verdict']})")


if __name__ == "__main__":
    main()
