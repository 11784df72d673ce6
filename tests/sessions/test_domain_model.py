"""The slot of a conversation against a model of it, over random histories (run protocol, Start, Release, Clear, Resume; I3–I6, I24, I25)."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.common.errors import HarnessError
from services.sessions import epoch, head, interrupt, runtime_fence, turn
from services.sessions.binding import BindingDocument, Policy, new_epoch
from services.sessions.runtime_fence import Fence

RUNS = st.integers(1, 8)
POLICIES: Any = st.sampled_from(["reject", "enqueue", "interrupt"])
MAX_WAITING = 3
CONVERSATION: Any = {"owner_id": "own_1", "agent_id": "a", "conversation_id": "c"}


@dataclass
class Asked:
    """An interrupt, and who answered it with what."""

    run_id: str
    revision: int = 1
    by: str = ""
    digest: str = ""


@dataclass
class Model:
    """What anybody could tell about a conversation without knowing how it is kept."""

    slot: str = ""
    line: list[str] = field(default_factory=list)
    superseding: set[str] = field(default_factory=set[str])
    """Runs that asked for the slot with policy `interrupt`."""
    asked: Asked | None = None
    closing: bool = False
    epoch: int = 1
    turn: int = 0
    generation: int = 0
    runtime: str = ""
    advanced: tuple[str, int, int] = ("", 0, 0)
    """The run and its generation that raised the runtime generation last, and to what."""
    run_generation: int = 0
    used: bool = False
    head_run: str = ""
    revision: int = 0
    uncertain: bool = False
    pin: int = 0

    @property
    def pending(self) -> bool:
        return self.asked is not None and not self.asked.by

    def give(self, run_id: str) -> None:
        self.slot, self.run_generation, self.uncertain = run_id, 1, False
        self.turn += 1
        if not self.runtime:
            self.generation += 1


class Conversation(RuleBasedStateMachine):
    """Run ids are never reused, as the protocol has it; numbers pick among those in play."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.document: BindingDocument = new_epoch(CONVERSATION, "bnd_1", 1, 0)
        self.started = 0
        self.clock = 1000
        self.entitled: dict[tuple[int, int], set[str]] = {}

    def _apply(self, change: Any) -> Any:
        """Applies a change and checks that the document it was given is untouched."""
        before = repr(self.document)
        document = self.document
        self.clock += 1
        changed, answer = change(self.clock)
        assert repr(document) == before
        if changed is not document:
            assert repr(changed) != before
        self.document = changed
        return answer

    def _fails(self, change: Any) -> None:
        try:
            change(self.clock)
        except HarnessError:
            return
        raise AssertionError("accepted")

    def _fence(self, **changes: Any) -> Fence:
        parts: dict[str, Any] = {
            "protocol_version": 1,
            "binding_id": f"bnd_{self.model.epoch}",
            "epoch": self.model.epoch,
            "runtime_generation": self.model.generation,
            "turn": self.model.turn,
            "run_id": self.model.slot,
            "run_generation": self.model.run_generation,
        }
        return Fence(**(parts | changes))

    def _someone(self, number: int) -> str:
        known = [self.model.slot, *self.model.line, "r0"]
        return known[number % len(known)] or "r0"

    @rule(policy=POLICIES, version=st.integers(1, 3))
    def start(self, policy: Policy, version: int) -> None:
        self.started += 1
        run_id = f"r{self.started}"
        pin: Any = {"agent_version": version, "harness_id": "h", "profile_id": "p"}
        asked = turn.Reservation(run_id, f"key-{run_id}", policy, pin)
        outcome, about = self._apply(lambda now: turn.reserve(self.document, asked, MAX_WAITING, now))
        model = self.model
        if model.closing:
            assert (outcome, about) == ("clearing", "")
        elif not model.slot and model.pending and policy != "interrupt":
            assert model.asked is not None
            assert (outcome, about) == ("interrupt_pending", model.asked.run_id)
        elif not model.slot:
            assert (outcome, about) == ("granted", run_id)
            model.pin = model.pin or version
            if model.pending:
                model.asked = None
            model.give(run_id)
        elif policy == "reject" or len(model.line) == MAX_WAITING:
            assert (outcome, about) == ("occupied", model.slot)
        else:
            assert (outcome, about) == ("waiting", run_id)
            model.line.insert(0 if policy == "interrupt" else len(model.line), run_id)
            if policy == "interrupt":
                model.superseding.add(run_id)

    @rule(number=RUNS, policy=POLICIES)
    def start_again(self, number: int, policy: Policy) -> None:
        run_id = self._someone(number)
        if run_id == "r0":
            return
        pin: Any = {"agent_version": 9, "harness_id": "h", "profile_id": "p"}
        asked = turn.Reservation("another", f"key-{run_id}", policy, pin)
        before = self.document
        answer = self._apply(lambda now: turn.reserve(self.document, asked, MAX_WAITING, now))
        assert answer == ("existing", run_id)
        assert self.document is before

    @precondition(lambda self: self.model.asked)
    @rule(
        own=st.booleans(),
        interrupt_id=st.sampled_from(["i1", "i1", "i1", "i2"]),
        step=st.sampled_from([0, 0, 0, -1, 1]),
        digest=st.sampled_from(["d1", "d2"]),
    )
    def answer(self, own: bool, interrupt_id: str, step: int, digest: str) -> None:
        """I24, I25: consumed once, by whoever names run, interrupt and revision; then only the same decision is answered with its run."""
        model, asked = self.model, self.model.asked
        assert asked is not None
        self.started += 1
        run_id = f"r{self.started}"
        answer = interrupt.Answer(asked.run_id if own else "r0", interrupt_id, asked.revision + step, digest)
        pin: Any = {"agent_version": 9, "harness_id": "h", "profile_id": "p"}
        wanted = turn.Reservation(run_id, f"key-{run_id}", "reject", pin, answer)
        outcome, about = self._apply(lambda now: turn.reserve(self.document, wanted, MAX_WAITING, now))
        if model.closing:
            assert (outcome, about) == ("clearing", "")
        elif not own or interrupt_id != "i1" or step:
            assert (outcome, about) == ("not_pending", "")
        elif asked.by:
            assert (outcome, about) == ("answered" if digest == asked.digest else "answered_otherwise", asked.by)
        elif model.slot:
            assert (outcome, about) == ("occupied", model.slot)
            assert model.slot == asked.run_id
        else:
            assert (outcome, about) == ("granted", run_id)
            model.asked = Asked(asked.run_id, asked.revision, run_id, digest)
            model.give(run_id)

    @rule(number=RUNS, stored=st.booleans(), issued=st.booleans(), interrupted=st.booleans())
    def release(self, number: int, stored: bool, issued: bool, interrupted: bool) -> None:
        run_id = self._someone(number)
        released = self._apply(
            lambda now: turn.release(
                self.document, run_id, stored=stored, issued=issued, interrupted=interrupted, now=now
            )
        )
        model, asked = self.model, self.model.asked
        assert released is (run_id == model.slot)
        if not released:
            return
        model.slot = ""
        model.used |= stored
        if asked is not None and asked.by == run_id and not issued:
            model.asked = Asked(asked.run_id, asked.revision + 1)
        elif asked is not None and not asked.by and asked.run_id == run_id and not interrupted:
            model.asked = None
        if not model.line or model.closing or (model.pending and model.line[0] not in model.superseding):
            return
        if model.pending:
            model.asked = None
        model.give(model.line.pop(0))

    @rule(number=RUNS)
    def withdraw(self, number: int) -> None:
        run_id = self._someone(number)
        withdrawn = self._apply(lambda now: turn.withdraw(self.document, run_id, now))
        assert withdrawn is (run_id in self.model.line)
        if withdrawn:
            self.model.line.remove(run_id)
            self.model.used = True

    @rule(number=RUNS, step=st.integers(-1, 2))
    def claim(self, number: int, step: int) -> None:
        run_id = self._someone(number)
        wanted = self.model.run_generation + step
        if run_id == self.model.slot and step > 0:
            self._apply(lambda now: turn.claim(self.document, run_id, wanted, now))
            self.model.run_generation = wanted
            self.model.used = True
        else:
            self._fails(lambda now: turn.claim(self.document, run_id, wanted, now))

    @precondition(lambda self: self.model.slot)
    @rule(name=st.sampled_from(["a", "b"]))
    def record_runtime(self, name: str) -> None:
        ref: Any = {"address": name, "incarnation": name}
        if self.model.runtime in ("", name):
            self._apply(lambda now: runtime_fence.record_runtime(self.document, self._fence(), ref, now))
            self.model.runtime = name
            self.model.used = True
        else:
            self._fails(lambda now: runtime_fence.record_runtime(self.document, self._fence(), ref, now))

    @precondition(lambda self: self.model.slot)
    @rule()
    def advance(self) -> None:
        if self.model.closing:
            self._fails(lambda now: runtime_fence.advance_runtime(self.document, self._fence(), now))
            return
        self._apply(lambda now: runtime_fence.advance_runtime(self.document, self._fence(), now))
        self.model.generation += 1
        self.model.advanced = (self.model.slot, self.model.run_generation, self.model.generation)
        self.model.runtime = ""
        self.model.used = True

    @precondition(lambda self: self.model.slot)
    @rule()
    def advance_again(self) -> None:
        """The call whose answer was lost has one effect, and it is that of the same executor of the same run alone."""
        fence, before, model = self._fence(runtime_generation=self.model.generation - 1), self.document, self.model
        if model.closing or model.advanced != (model.slot, model.run_generation, model.generation):
            self._fails(lambda now: runtime_fence.advance_runtime(self.document, fence, now))
        else:
            self._apply(lambda now: runtime_fence.advance_runtime(self.document, fence, now))
            assert self.document is before

    @precondition(lambda self: self.model.slot)
    @rule(asks=st.booleans())
    def commit(self, asks: bool) -> None:
        model = self.model
        asked = interrupt.Asked("i1", 1, "what") if asks else None

        def change(now: int) -> Any:
            return head.commit(self.document, self._fence(), None, {}, "outcome", now, asked=asked)

        if model.head_run == model.slot:
            assert self._apply(change) == model.revision
        elif model.closing or model.uncertain:
            self._fails(change)
        else:
            assert self._apply(change) == model.revision + 1
            model.revision, model.head_run, model.used = model.revision + 1, model.slot, True
            if asks:
                model.asked = Asked(model.slot)

    @precondition(lambda self: self.model.slot)
    @rule()
    def mark_uncertain(self) -> None:
        model = self.model

        def change(now: int) -> Any:
            return head.mark_uncertain(self.document, self._fence(), now)

        if model.head_run == model.slot:
            assert self._apply(change) is True
        elif model.closing:
            self._fails(change)
        else:
            assert self._apply(change) is False
            model.uncertain = model.used = True

    @precondition(lambda self: self.model.slot)
    @rule(
        part=st.sampled_from(["epoch", "runtime_generation", "turn", "run_generation"]), step=st.sampled_from([-1, 1])
    )
    def stale(self, part: str, step: int) -> None:
        fence = self._fence(**{part: getattr(self._fence(), part) + step})
        ref: Any = {"address": "c", "incarnation": "c"}
        for change in (
            lambda now: head.commit(self.document, fence, None, {}, "outcome", now),
            lambda now: head.mark_uncertain(self.document, fence, now),
            lambda now: runtime_fence.record_runtime(self.document, fence, ref, now),
            lambda now: runtime_fence.record_native_session(self.document, fence, "n", now),
        ):
            self._fails(change)
        if (part, step) != ("runtime_generation", -1):  # `advance_again` says when that is the same call again
            self._fails(lambda now: runtime_fence.advance_runtime(self.document, fence, now))

    @rule()
    def begin_clear(self) -> None:
        model = self.model
        clearable = model.closing or model.used or bool(model.slot) or bool(model.line)
        assert self._apply(lambda now: epoch.begin_clear(self.document, now)) is clearable
        model.closing = clearable

    @rule()
    def finish_clear(self) -> None:
        model = self.model
        if not model.closing or model.slot or model.line:
            self._fails(lambda now: epoch.check_clear_can_finish(self.document))
            return
        epoch.check_clear_can_finish(self.document)
        self.document = epoch.opened(self.document, f"bnd_{model.epoch + 1}")
        self.model = Model(epoch=model.epoch + 1, turn=model.turn)

    @invariant()
    def agrees(self) -> None:
        model, document = self.model, self.document
        active = document["active"]
        assert (active["run_id"] if active else "") == model.slot
        assert (active["run_generation"] if active else model.run_generation) == model.run_generation
        assert (active["uncertain"] if active else model.uncertain) == model.uncertain
        assert [place["run_id"] for place in document["waiting"]] == model.line
        assert document["status"] == ("closing" if model.closing else "active")
        assert (document["epoch"], document["turn"]) == (model.epoch, model.turn)
        assert document["runtime_generation"] == model.generation
        assert (document["runtime_ref"] or {"address": ""})["address"] == model.runtime
        assert document["used"] is model.used
        assert (document["head"] or {"revision": 0})["revision"] == model.revision
        kept, asked = document.get("interrupt"), model.asked
        assert (None if kept is None else (kept["run_id"], kept["revision"], kept["consumed_by"])) == (
            None if asked is None else (asked.run_id, asked.revision, asked.by)
        )
        pin = document["pin"]
        assert (pin["agent_version"] if pin else 0) == model.pin

    @invariant()
    def i24_nobody_but_the_run_that_asked_holds_the_slot_of_a_pending_interrupt(self) -> None:
        kept, active = self.document.get("interrupt"), self.document["active"]
        if kept is not None and not kept["consumed_by"] and active is not None:
            assert active["run_id"] == kept["run_id"]
            assert kept["content"] == "what"

    @invariant()
    def needs_help_exactly_while_something_is_open(self) -> None:
        model = self.model
        unsettled = self.document["unsettled_changed_at"]
        assert (unsettled is not None) is (bool(model.slot) or bool(model.line) or model.closing)

    @invariant()
    def a_generation_without_a_runtime_is_one_runs_own(self) -> None:
        """Design 0001, Reserve: nobody else may ever create the runtime of a generation that is not recorded."""
        if self.model.slot and not self.model.runtime:
            owners = self.entitled.setdefault((self.model.epoch, self.model.generation), set())
            owners.add(self.model.slot)
            assert len(owners) == 1


TestConversation = Conversation.TestCase
