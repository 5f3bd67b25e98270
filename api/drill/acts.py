"""The acts of the drill, in their order; each is played only for promises that are checked."""

from __future__ import annotations

from typing import Any

from api.drill import accepting, damaging, recovering, releasing, rewinding, verdict
from api.drill.site import ended
from api.drill.story import Story, Stuck

STRUCK = ("P1", "P6")
EFFECTS = ("P3", "P4", "P7", "P11", "P12")
REWOUND = ("P2", "P4", "P7", "P8", "P11", "P12")
RECOVERED = ("P2", "P4", "P7", "P11", "P12")
OLD = ("P7",)


def play(story: Story) -> None:
    """Play the acts and judge. A step that fails ends the acts, not the verdict."""
    try:
        _play(story)
    except Stuck:
        pass
    finally:
        verdict.judge(story)


def _play(story: Story) -> None:
    site = story.site
    still = {"UNREWIND_DISPATCH": "false", "UNREWIND_SWEEP_EVERY": "3600"}
    with story.step("P1", "start the service"):
        service = site.serve("stored", **still)
    accepting.accept(story)
    if story.wants("P9"):
        accepting.control(story)
    if story.wants("P5", "P10"):
        accepting.seal_out_of_order(story)
    if story.wants(*REWOUND):
        releasing.permit_and_cancel(story)
    if story.wants(*STRUCK):
        accepting.strike(story, service)
        with story.step("P1", "start the service again"):
            service = site.serve(**still)
        accepting.settle(story)
    if story.wants(*EFFECTS):
        releasing.send(story)
    if story.wants(*OLD):
        releasing.take_permit(story)
        rewinding.keep_elder(story)
    if story.wants("P10"):
        story.facts["fingerprints"] = damaging.fingerprints(story.journal)
    if story.wants(*REWOUND):
        service = _rewind(story, service)
    with story.step("P1", "stop the service"):
        service.terminate()
        ended(service)
    if story.wants("P9"):
        damaging.close_without_control(story)
    if story.wants("P8"):
        damaging.roll_both_back(story)
    if story.wants("P10"):
        damaging.tell_damage_apart(story)


def _rewind(story: Story, service: Any) -> Any:
    rewinding.stop_service(story, service)
    rewinding.alter(story)
    rewinding.restore(story)
    service = rewinding.notice(story)
    if not story.wants(*RECOVERED):
        return service
    recovering.fence(story)
    recovering.rebuild(story)
    recovering.reconcile(story)
    recovering.reopen(story)
    recovering.consume(story)
    recovering.let_out(story)
    if story.wants(*OLD):
        recovering.try_old_work(story)
    recovering.repeat_everything(story)
    if story.wants("P12"):
        recovering.account(story)
        recovering.look_back(story)
    return service
