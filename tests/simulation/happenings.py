"""What happens in a world when an event of its workload comes up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from api.served import Served
from journal.control import Role, Running
from journal.errors import UnrewindError
from tests.simulation.clients import Wish
from tests.simulation.promises import Broken
from tests.simulation.tenant import PUSHED

if TYPE_CHECKING:
    from tests.simulation.world import World

Facts = Mapping[str, Any]


def send(world: World, facts: Facts) -> None:
    """A client sends an operation, or a batch; half of those that hear nothing send again."""
    wishes = [msgspec.convert(wish, Wish) for wish in facts["wishes"]]
    if "look" in facts:
        world.after(facts["look"], lambda: world.clients.look(wishes[-1].entity))
    world.clients.send(wishes, cancel=facts.get("cancel"))
    for wish in wishes:
        if wish.id not in world.clients.told and world.delay(1.0) < 0.5:
            world.hub.sleep(world.delay(20.0))
            world.clients.send([wish])


def _told(world: World, which: float) -> Wish | None:
    """An operation of which somebody was told something."""
    known = [event.facts["wishes"] for event in world.events if event.kind == "send"]
    flat = [wish for wishes in known for wish in wishes if wish["id"] in world.clients.told]
    return msgspec.convert(flat[int(which * len(flat))], Wish) if flat else None


def repeat(world: World, facts: Facts) -> None:
    """A client sends once more what it was answered."""
    wish = _told(world, facts["which"])
    if wish is not None:
        world.clients.send([wish])


def reuse(world: World, facts: Facts) -> None:
    """A client uses an ID for something different."""
    wish = _told(world, facts["which"])
    if wish is not None:
        world.clients.reuse(wish)


def read(world: World, facts: Facts) -> None:
    """Somebody reads an entity."""
    world.clients.look(facts["entity"])


def work(world: World, facts: Facts) -> None:
    """A worker pulls."""
    world.workers.pull(facts["lane"], facts["worker"], facts["limit"], again=facts["again"])


def sealed(world: World, facts: Facts) -> None:
    """A caller that owns its store sends what it has sealed, in any order."""
    world.callers.deliver(facts["entity"], facts["order"])


def copy(world: World, facts: Facts) -> None:
    """A copy of a file is kept."""
    world.disks.keep(facts["what"])


def rewind(world: World, facts: Facts) -> None:
    """The store is put back, under whoever uses it."""
    if world.disks.rewind(facts["how"], facts["depth"]):
        world.count(f"rewind:{facts['how']}")
        world.clients.forget(world.mirror.gone)


def table(world: World, facts: Facts) -> None:
    """The table of work is put back alone."""
    if world.disks.put_table_back(facts["depth"]):
        world.count("rewind:table")


def fault(world: World, facts: Facts) -> None:
    """Something is to go wrong at a service's statement."""
    world.faults.arm(facts["role"], facts["moment"], facts["left"], facts["kind"])


def kill(world: World, facts: Facts) -> None:
    """A service is killed."""
    world.services[facts["number"] % len(world.services)].kill()


def freeze(world: World, facts: Facts) -> None:
    """A service stands still for a while."""
    process = world.services[facts["number"] % len(world.services)].process
    if process is not None and process.alive:
        world.freeze(process, facts["seconds"])


def restart(world: World, facts: Facts) -> None:
    """A service is stopped in good order, and started anew."""
    world.services[facts["number"] % len(world.services)].stop()
    world.count("restart")


def away(world: World, facts: Facts) -> None:
    """The journal cannot be reached for a while."""
    world.faults.away["journal"] = world.hub.now + facts["seconds"]
    world.count("away")


def slow(world: World, facts: Facts) -> None:
    """The journal is slow for a while."""
    world.faults.slow["journal"] = world.hub.now + facts["seconds"]
    world.count("slow")


def snapshot(world: World, _facts: Facts) -> None:
    """The operator takes a snapshot."""
    world.operator.snapshot()


def restore(world: World, _facts: Facts) -> None:
    """The operator puts a snapshot back, and tells nobody."""
    if not world.mirror.rolled_back:
        world.operator.put_back()


def clock(world: World, facts: Facts) -> None:
    """A clock jumps."""
    if facts["whose"] == "machine":
        world.machine.skew += facts["by"]
    else:
        world.machine.database_skew += facts["by"]
    world.count("clock")


def lose(world: World, facts: Facts) -> None:
    """The machine comes back with an earlier journal, and perhaps an earlier store."""
    for process in world.hub.processes:
        if process is not world.outside and process.alive:
            process.kill()
    if not world.disks.lose(facts["depth"], store=facts["store"]):
        return
    world.count("lose:both" if facts["store"] else "lose:journal")
    world.clients.forget(world.mirror.gone)


def pause(world: World, facts: Facts) -> None:
    """The operator pauses a lane, and lets it run again later."""
    lane = PUSHED[facts["number"]]

    def change(running: Running) -> None:
        async def asking(served: Served) -> Any:
            return await served.journal.lanes.set_lane(lane, running, "simulated", "operator")

        try:
            world.service().ask(asking)
            world.count(f"lane {running}")
        except UnrewindError:
            world.count("lane refused")

    change(Running.PAUSED)
    world.hub.sleep(facts["seconds"])
    world.paused.append(lambda: change(Running.ON))
    change(Running.ON)


def token(world: World, facts: Facts) -> None:
    """A token is made and revoked; revoked it never lets anybody in again."""
    number = world.fresh()

    async def make(served: Served) -> Any:
        return await served.journal.create_token(Role.WRITER, f"token-{number}")

    async def present(served: Served) -> Any:
        return await served.journal.authenticate(made)

    def check(found: Any) -> None:
        if found is not None and revoked:
            raise Broken("P2", f"token {found.id} was revoked, and lets somebody in")

    revoked = False
    try:
        made: str = world.service().ask(make)
        found = world.service().ask(present, check)
        if found is None:
            return
        made_id = found.id

        async def end(served: Served) -> Any:
            await served.journal.revoke_token(made_id)

        world.service().ask(end)
        revoked = True
        world.count("tokens revoked")
    except UnrewindError:
        return
    frozen = world.counts["freeze"]
    # Another process knows of it once it has looked, which it does every so often.
    world.hub.sleep(3 * world.settings.handoff_every)
    for _ in range(3):
        world.hub.sleep(facts["seconds"])
        if world.counts["freeze"] != frozen:
            return
        try:
            world.service().ask(present, check)
        except UnrewindError:
            continue


HAPPENS: Mapping[str, Callable[[World, Facts], None]] = {
    function.__name__: function
    for function in (
        send,
        repeat,
        reuse,
        read,
        work,
        sealed,
        copy,
        rewind,
        table,
        fault,
        kill,
        freeze,
        restart,
        away,
        slow,
        snapshot,
        restore,
        clock,
        pause,
        token,
        lose,
    )
}
