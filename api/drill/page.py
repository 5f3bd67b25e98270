"""The report as a page to read: one file, no scripts, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from api.drill.report import HELD, Kept, Report, sentences

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --good: #1a7f37; --bad: #c11; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.5rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem .3rem 0; text-align: left;
  vertical-align: top; overflow-wrap: anywhere; }
td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.held { color: var(--good); } .broke { color: var(--bad); font-weight: 600; }
code { font-size: .9em; } details { margin: .4rem 0; } summary { cursor: pointer; }
"""


def page(report: Report) -> str:
    """The whole page."""
    verdict = (
        "every promise held"
        if report.held
        else f"broke: {', '.join(report.broke) or 'not everything was reached'}"
    )
    tone = "held" if report.held and not report.missed else "broke"
    source = f" on a copy of <code>{escape(report.source)}</code>" if report.source else ""
    where = f"<code>{escape(report.directory)}</code>"
    parts = [
        f'<h1>Drill: <span class="{tone}">{escape(verdict)}</span></h1>',
        f"<p>{escape(report.at)}, {report.seconds:g} s{source}. Evidence in {where}.</p>",
        _list(sentences(report)),
        "<h2>Times</h2>",
        _times(report),
        "<h2>Promises</h2>",
        *(_promise(kept) for kept in report.promises),
        "<h2>What was done</h2>",
        "<p>Lines with a command are a person's steps.</p>",
        _steps(report),
        "<h2>What it needs</h2>",
        "<h3>Places</h3>",
        _list(report.places),
        "<h3>Rights</h3>",
        _list(report.rights),
        _credentials(report),
        "<h2>Counts</h2>",
        _table(("what", "found"), ((name, str(value)) for name, value in report.counts.items())),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>unrewind drill: {escape(verdict)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def _credentials(report: Report) -> str:
    lines = [
        f"{name}: {'set' if there else 'not set: the service will not start without it'}"
        for name, there in report.credentials.items()
    ]
    return f"<h3>Credentials, by the names of their variables</h3>{_list(lines)}" if lines else ""


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(value)}</td>" for value in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _times(report: Report) -> str:
    rows = [
        (
            time.what,
            "not reached" if time.seconds is None else f"{time.seconds:.1f} s",
            f"{time.within:g} s" if time.within else "none is set",
            "met" if time.met else "missed",
        )
        for time in report.times
    ]
    if not rows:
        return "<p>Nothing was measured: no recovery was part of this drill.</p>"
    return _table(("from the begin of the recovery to", "took", "objective", ""), rows)


def _promise(kept: Kept) -> str:
    tone = "held" if kept.state == HELD else "broke"
    rows = "".join(
        f'<tr><td class="{"held" if check.held else "broke"}">'
        f"{'✓' if check.held else '✗'}</td><td>{escape(check.name)}</td>"
        f"<td>{escape(check.expected)}</td><td>{escape(check.found)}</td></tr>"
        for check in kept.checks
    )
    return (
        f"<details{'' if kept.state == HELD else ' open'}><summary><b>{kept.promise}</b> "
        f'<span class="{tone}">{kept.state}</span>: {escape(kept.text)}</summary>'
        "<table><thead><tr><th></th><th>checked</th><th>expected</th><th>found</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></details>"
    )


def _steps(report: Report) -> str:
    rows = "".join(
        f"<tr><td>{escape(step.what)}</td>"
        f"<td>{f'<code>{escape(step.command)}</code>' if step.command else ''}</td>"
        f'<td class="number">{step.seconds:.1f} s</td></tr>'
        for step in report.steps
    )
    return (
        "<table><thead><tr><th>step</th><th>command</th><th>took</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )
