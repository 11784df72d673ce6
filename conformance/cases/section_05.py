"""Section 5: conversations, their committed state, and who may act for them."""

import asyncio
import re
import secrets

from conformance.cases.registry import AFTER, case
from conformance.failure import Broken, expect
from conformance.kit import Kit
from conformance.plane.binding import Binding
from conformance.plane.run import Draft, kind, text_of
from conformance.scenario import Hang, Say
from harness.adapter.v1 import adapter_service_pb2
from harness.common.v1 import error_pb2, fence_pb2
from harness.event.v1 import payload_pb2

PERSISTENCE = error_pb2.ERROR_CATEGORY_PERSISTENCE
_PRINTABLE = re.compile(r"[\x21-\x7e]{1,512}")


def _word() -> str:
    return f"word{secrets.token_hex(4)}"


async def _tell(kit: Kit, binding: Binding, said: str, **settings: bool) -> list[Draft]:
    run = binding.run(kit.driver.talk(said))
    drafts = await run.play(commit=settings.get("commit", True))
    run.expect_end("run_completed")
    return drafts


async def _knows(kit: Kit, binding: Binding, word: str) -> bool:
    return word in text_of(await _tell(kit, binding, f"and now {secrets.token_hex(4)}"))


@case("R5.1", "the second turn knows the first")
async def r5_1_multi_turn(kit: Kit) -> None:
    binding, word = await kit.binding(), _word()
    await _tell(kit, binding, f"remember {word}")
    expect(await _knows(kit, binding, word), "The second turn does not know what was said in the first.")


@case("R5.2", "the head names what the run wrote")
async def r5_2_pending_head(kit: Kit) -> None:
    kit.need_state()
    binding = await kit.binding()
    for _ in range(2):
        run = binding.run(kit.driver.talk(_word()))
        await run.play()
        last = run.expect_end("run_completed")
        written = binding.thread.written_by(run.fence.run_id)
        expect(bool(written), "A turn of conversation wrote no state.")
        named = list(last.pending_head.part_refs)
        expect(named == written, f"run.completed names the parts {named}, and the run wrote {written}.")


@case("R5.2", "no head names what its run did not write", when=AFTER)
async def r5_2_everywhere(kit: Kit) -> None:
    for finding in kit.setting.observations.findings.get("R5.2", ()):
        raise Broken(finding)


@case("R5.3", "fence and token of state calls")
async def r5_3_state_calls(kit: Kit) -> None:
    kit.need_state()
    binding = await kit.binding()
    await _tell(kit, binding, _word())
    run = binding.run(kit.driver.talk(_word()))
    await run.play()
    calls = run.grants["state"].calls
    kit.figures["state_calls"] = len(calls)
    expect(len(calls) > 0, "A turn of conversation made no call of the state facade with its token.")
    faults = [f"{call.method} with {call.fault}" for call in calls if call.fault]
    expect(not faults, f"A call of the state facade came: {faults[0] if faults else ''}.")


@case("R5.3", "no call of a facade without a token of its run", when=AFTER)
async def r5_3_strangers(kit: Kit) -> None:
    strangers = kit.setting.facades.grants.strangers
    expect(not strangers, f"{len(strangers)} calls of facades came without a token of this certification.")


@case("R5.4", "what nobody committed is not known")
async def r5_4_committed_only(kit: Kit) -> None:
    kit.need_state()
    binding, kept, lost = await kit.binding(), _word(), _word()
    await _tell(kit, binding, f"remember {kept}")
    await _tell(kit, binding, f"remember {lost}", commit=False)
    await binding.replace()
    said = text_of(await _tell(kit, binding, "and now"))
    expect(lost not in said, "A new runtime knows what an earlier run wrote and nobody committed.")
    expect(kept in said, "A new runtime does not know the committed turn.")


@case("R5.5", "Restart keeps the conversation")
async def r5_5_restart(kit: Kit) -> None:
    binding, word = await kit.binding(), _word()
    await _tell(kit, binding, f"remember {word}")
    await binding.restart()
    expect(await _knows(kit, binding, word), "After a Restart the conversation is forgotten.")


@case("R5.6", "another replica goes on")
async def r5_6_another_replica(kit: Kit) -> None:
    binding, word = await kit.binding(), _word()
    await _tell(kit, binding, f"remember {word}")
    kit.figures["replica"] = "another process" if kit.replica else "a runtime of the same process"
    await binding.replace(kit.replica)
    expect(await _knows(kit, binding, word), "Another runtime of the binding does not know the conversation.")


@case("R5.7", "a conversation survives its runtime")
async def r5_7_lost_runtime(kit: Kit) -> None:
    binding, word = await kit.binding(), _word()
    await _tell(kit, binding, f"remember {word}")
    await binding.cleanup()
    await binding.replace()
    expect(await _knows(kit, binding, word), "The conversation was lost with its runtime.")


@case("R5.8", "a new epoch knows nothing")
async def r5_8_clear(kit: Kit) -> None:
    binding, word = await kit.binding(), _word()
    await _tell(kit, binding, f"remember {word}")
    native_id = binding.native_session_id
    await binding.cleanup()
    closing = adapter_service_pb2.CloseSessionRequest(fence=binding.fence(), native_session_id=native_id)
    await kit.target.ask(
        "CloseSession", kit.target.adapter.CloseSession(closing, timeout=30, metadata=kit.target.metadata)
    )
    cleared = Binding(kit.setting, kit.target, binding_id=binding.binding_id, epoch=2, runtime_generation=2)
    # The old epoch is over: nothing of it is cleaned up any more.
    kit.made[:] = [cleared]
    await cleared.create()
    expect(not await _knows(kit, cleared, word), "After a clear the conversation is still known.")


@case("R5.9", "bindings know nothing of each other")
async def r5_9_apart(kit: Kit) -> None:
    bindings = [await kit.binding() for _ in range(4)]
    words = [_word() for _ in bindings]
    await asyncio.gather(*(_tell(kit, each, f"remember {word}") for each, word in zip(bindings, words, strict=True)))
    answers = await asyncio.gather(*(_tell(kit, each, "and now") for each in bindings))
    for own, drafts in enumerate(answers):
        said = text_of(drafts)
        foreign = [word for other, word in enumerate(words) if other != own and word in said]
        expect(not foreign, "A binding knows what was said in another one.")
        if kit.claims("session.multi_turn"):
            expect(words[own] in said, "A binding got the answer of another conversation.")


@case("R5.10", "state that cannot be loaded")
async def r5_10_not_loaded(kit: Kit) -> None:
    kit.need_state()
    binding, word = await kit.binding(), _word()
    await _tell(kit, binding, f"remember {word}")
    if kit.shared is None:
        await binding.replace()
    else:
        await binding.restart()
    binding.thread.fail_loads = True
    run = binding.run(kit.driver.talk("and now"))
    await run.play()
    asked = [entry for entry in binding.thread.journal if entry[:2] == ("load", run.fence.run_id)]
    if not asked and kit.shared is not None and word in text_of(run.drafts):
        # The worker still holds this conversation and had no need to load it.
        binding.thread.fail_loads = False
        return
    failed = run.expect_end("run_failed").payload.run_failed
    expect(failed.category == PERSISTENCE, f"The run failed with category {failed.category}, not persistence.")
    binding.thread.fail_loads = False
    expect(await _knows(kit, binding, word), "Once its state could be loaded again, the conversation was not known.")


@case("R5.10", "state that cannot be written")
async def r5_10_not_written(kit: Kit) -> None:
    kit.need_state()
    binding = await kit.binding()
    binding.thread.fail_writes = True
    run = binding.run(kit.driver.talk(_word()))
    await run.play()
    failed = run.expect_end("run_failed").payload.run_failed
    expect(failed.category == PERSISTENCE, f"The run failed with category {failed.category}, not persistence.")


@case("R5.11", "an older executor is refused everywhere")
async def r5_11_older_executor(kit: Kit) -> None:
    binding = await kit.binding()
    run = binding.run(kit.message((Say("begun"), Hang())))
    stream = run.start()
    await stream.read_until(1)
    younger = fence_pb2.Fence()
    younger.CopyFrom(run.fence)
    younger.run_generation = 2
    taken = run.attach(0, fence=younger)
    await taken.read_until(1)
    refuse = kit.target.must_refuse
    await refuse("StartRun", run.start().call.read(), "FAILED_PRECONDITION", "STALE_LEASE")
    await refuse("AttachRun", run.attach().call.read(), "FAILED_PRECONDITION", "STALE_LEASE")
    await refuse("AckRun", run.ack_call(1), "FAILED_PRECONDITION", "STALE_LEASE")
    await refuse("CancelRun", run.cancel_call(), "FAILED_PRECONDITION", "STALE_LEASE")
    await kit.target.ask("CancelRun", run.cancel_call(fence=younger))
    await run.follow(taken, ack=False, commit=False)
    run.expect_end("run_cancelled")


@case("R5.12", "older turns start nothing")
async def r5_12_older_turns(kit: Kit) -> None:
    binding = await kit.binding()
    message = kit.message((Say("x"),))
    binding.turn += 1
    await binding.say(message)
    refuse, turn = kit.target.must_refuse, binding.turn
    for older in (turn - 1, turn):
        late = binding.run(message, turn=older)
        await refuse("StartRun", late.start().call.read(), "FAILED_PRECONDITION", "STALE_LEASE")
        await refuse("AttachRun", late.attach().call.read(), "NOT_FOUND", "run_unknown")


@case("R5.13", "a younger turn ends the older one")
async def r5_13_younger_turn(kit: Kit) -> None:
    binding = await kit.binding()
    older = binding.run(kit.message((Say("begun"), Hang())))
    stream = older.start()
    await stream.read_until(1)
    younger = binding.run(kit.message((Say("young"),)))
    drafts = await younger.play()
    expect(text_of(drafts) == "young", "The younger turn did not do its work.")
    younger.expect_end("run_completed")
    await older.follow(stream, ack=False, commit=False)
    cancelled = older.expect_end("run_cancelled").payload.run_cancelled
    superseded = payload_pb2.CANCEL_REASON_SUPERSEDED
    expect(cancelled.reason == superseded, "The older run was cancelled for another reason than superseded.")


@case("R5.14", "native ids in events")
async def r5_14_native_ids(kit: Kit) -> None:
    binding = await kit.binding()
    drafts = await _tell(kit, binding, "hello")
    updates = [draft for draft in drafts if kind(draft) == "session_updated"]
    kit.figures["session_updates"] = len(updates)
    for draft in updates:
        expect(not draft.namespace, "session.updated stands inside a namespace.")
        whole = _PRINTABLE.fullmatch(draft.native_session_id) is not None
        expect(whole, "session.updated carries no native id of one line of printable ASCII.")


@case("R5.14", "no other event carries a native id", when=AFTER)
async def r5_14_everywhere(kit: Kit) -> None:
    for finding in kit.setting.observations.findings.get("R5.14", ()):
        raise Broken(finding)


@case("R5.14", "OpenSession and CloseSession are idempotent", placements=("adapter",))
async def r5_14_open_and_close(kit: Kit) -> None:
    binding = kit.unmade()
    adapter, metadata = kit.target.adapter, kit.target.metadata

    async def opened() -> str:
        request = adapter_service_pb2.OpenSessionRequest(fence=binding.fence(), context=binding.context())
        call = adapter.OpenSession(request, timeout=30, metadata=metadata)
        return (await kit.target.ask("OpenSession", call)).native_session_id

    first, second = await opened(), await opened()
    expect(first == second, "OpenSession gave the same binding and epoch two native ids.")
    for native_id in (first, first, "never-was"):
        request = adapter_service_pb2.CloseSessionRequest(fence=binding.fence(), native_session_id=native_id)
        await kit.target.ask("CloseSession", adapter.CloseSession(request, timeout=30, metadata=metadata))
