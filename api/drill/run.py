"""Running a drill from its empty directory to its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from api.drill import acts, borrowing, facts, own
from api.drill.clearing import clear
from api.drill.own import Source
from api.drill.report import Report, report_on, write
from api.drill.site import Hung, Site
from api.drill.story import PROMISES, Story
from api.drill.town import HERE, Servers, configuration, settings_of
from journal.errors import Refused
from journal.settings import Objective, Settings

Say = Callable[[str], None]


def rehearse(
    folder: Path,
    wanted: Collection[str],
    objective: Objective,
    say: Say,
    servers: Servers = HERE,
) -> Report:
    """Rehearse in an empty directory, on data of the drill's own; the report, which is written too.

    On ``servers`` the tenant has a name of its own, and is taken away again at the end. Raises
    Refused when nothing can be started there.
    """
    began = time.monotonic()
    with _site(folder) as site:
        where = settings_of(str(site.folder / "data"), servers)
        _receive(site, where)
        within = (objective.safe_within, objective.backlog_within)
        text = configuration(where, site.receiver_url, *within)
        site.config.write_text(text, encoding="utf-8")
        story = Story(site, wanted, say, hurried=len(wanted) < len(PROMISES))
        acts.play(story)
    report = _reported(story, objective, began)
    if servers.named and report.held:
        clear(where)
    return report


def rehearse_own(folder: Path, source: Source, wanted: Collection[str], say: Say) -> Report:
    """Rehearse in an empty directory, on a copy of an operator's data; the report, written too.

    Nothing of the original is opened for writing. Raises Refused when it cannot be copied, or its
    configuration would still lead out of the drill.
    """
    began = time.monotonic()
    settings = source.settings
    named = borrowing.credentials(settings)
    with _site(folder, tuple(named)) as site:
        data = site.folder / "data"
        borrowing.borrow(settings, data)
        if not facts.newest(data / "journal" / f"{settings.tenant}.db"):
            raise Refused("the journal holds no decisions: there is nothing to rewind yet")
        _receive(site, Settings(data=str(data), tenant=settings.tenant))
        text = borrowing.isolated(settings, data, site.receiver_url)
        site.config.write_text(text, encoding="utf-8")
        # Projections are the application's own code, found from where it runs.
        site.look_in(Path.cwd())
        story = Story(site, set(wanted).intersection(own.PROMISES), say)
        story.facts["credentials"] = named
        own.play(story, source)
    return _reported(story, settings.objective, began, settings)


@contextmanager
def _site(folder: Path, hidden: tuple[str, ...] = ()) -> Iterator[Site]:
    site = Site(folder, hidden)
    try:
        yield site
    finally:
        site.close()


def _receive(site: Site, settings: Settings) -> None:
    try:
        site.receive(settings)
    except Hung as error:
        raise Refused(f"the drill's receiver cannot be started: {error}") from error


def _reported(
    story: Story, objective: Objective, began: float, source: Settings | None = None
) -> Report:
    story.notebook.close()
    report = report_on(story, objective, time.monotonic() - began, source)
    write(report, story.site.folder)
    return report
