"""Section 2: streams, offsets, order, flow."""

import asyncio
import itertools

from conformance.cases.registry import AFTER, case
from conformance.failure import Broken, expect
from conformance.kit import Kit
from conformance.plane.binding import Binding
from conformance.plane.run import TERMINALS, Draft, Run, Stream, kind, kinds, text_of
from conformance.scenario import CountUsage, Emit, Hang, Say, Think

KIB = 1024
# How long a runtime is given to break its bound.
QUIET_SECONDS = 0.5
LETTERS = tuple(f"{number:03d} " for number in range(40))
SPOKEN = (Say(pieces=LETTERS),)


def _seen(kit: Kit, rule_id: str) -> None:
    observations = kit.setting.observations
    kit.figures["streams"], kit.figures["drafts"] = observations.streams, observations.drafts
    for finding in observations.findings.get(rule_id, ()):
        raise Broken(finding)


@case("R2.1", "offsets of one run, batch by batch")
async def r2_1_offsets(kit: Kit) -> None:
    binding = await kit.binding()
    run = binding.run(kit.driver.burst(600, 16))
    await run.play()
    following = 1
    for first, drafts in run.batches:
        expect(first == following, f"A batch begins at offset {first}, it should at {following}.")
        following += len(drafts)
    expect(following - 1 >= 601, f"The burst of 600 deltas had {following - 1} drafts.")


@case("R2.1", "offsets of every stream", when=AFTER)
async def r2_1_everywhere(kit: Kit) -> None:
    _seen(kit, "R2.1")


@case("R2.2", "no run.started in a plain run")
async def r2_2_run_started(kit: Kit) -> None:
    binding = await kit.binding()
    for message in (kit.message(SPOKEN), kit.driver.talk("hello")):
        expect("run_started" not in kinds(await binding.say(message)), "The runtime sent run.started.")


@case("R2.2", "no run.started anywhere", when=AFTER)
async def r2_2_everywhere(kit: Kit) -> None:
    _seen(kit, "R2.2")


@case("R2.3", "one terminal, and it is the last")
async def r2_3_one_terminal(kit: Kit) -> None:
    binding = await kit.binding()
    drafts = await binding.say(kit.message(SPOKEN))
    ends = [each for each in kinds(drafts) if each in TERMINALS]
    expect(ends == ["run_completed"], f"The run had the terminal events {ends}.")
    expect(kind(drafts[-1]) == "run_completed", f"{kind(drafts[-1])} came after run_completed.")


@case("R2.3", "what a provider says after its end is discarded")
async def r2_3_late_events(kit: Kit) -> None:
    binding = await kit.binding()
    late = (Say("early"), Emit("run.completed", {"stop_reason": "end_turn"}), Say("late"))
    drafts = await binding.say(kit.message(late))
    ends = [each for each in kinds(drafts) if each in TERMINALS]
    expect(len(ends) == 1, f"The run had the terminal events {ends}.")
    expect(kind(drafts[-1]) == ends[0], f"{kind(drafts[-1])} came after {ends[0]}.")
    expect("late" not in text_of(drafts), "What was said after the terminal was sent.")


@case("R2.3", "one terminal in every stream", when=AFTER)
async def r2_3_everywhere(kit: Kit) -> None:
    _seen(kit, "R2.3")


@case("R2.4", "the stream ends with its terminal")
async def r2_4_stream_ends(kit: Kit) -> None:
    binding = await kit.binding()
    run = binding.run(kit.message(SPOKEN))
    stream = run.start()
    while await stream.read() is not None:
        pass
    kit.setting.observations.look(run, stream)
    expect(stream.ended, f"The stream ended with {stream.how_ended()}.")
    expect(bool(stream.drafts) and kind(stream.drafts[-1]) in TERMINALS, "The stream ended without a terminal.")


@case("R2.4", "every stream ends in order", when=AFTER)
async def r2_4_everywhere(kit: Kit) -> None:
    _seen(kit, "R2.4")


@case("R2.5", "text whole, in order, by message")
async def r2_5_text(kit: Kit) -> None:
    binding = await kit.binding()
    first, second = ("The ", "quick ", "brown fox"), ("jumps — ", "über ", "🦊\n", "the dog.")
    drafts = await binding.say(kit.message((Say(pieces=first), Say(pieces=second))))
    messages: dict[str, str] = {}
    for draft in drafts:
        if kind(draft) == "content_delta":
            delta = draft.payload.content_delta
            messages[delta.message_id] = messages.get(delta.message_id, "") + delta.text
    said = list(messages.values())
    expect(
        said == ["".join(first), "".join(second)], f"Two messages came as {len(said)}: {[text[:40] for text in said]}."
    )
    order = [draft.payload.content_delta.message_id for draft in drafts if kind(draft) == "content_delta"]
    changes = sum(before != after for before, after in itertools.pairwise(order))
    expect(changes == 1, "The deltas of the two messages are mixed.")


@case("R2.6", "reasoning is reasoning")
async def r2_6_reasoning(kit: Kit) -> None:
    binding = await kit.binding()
    drafts = await binding.say(kit.message((Think("first I think about it"), Say("then I answer"))))
    thought = "".join(draft.payload.reasoning_delta.text for draft in drafts if kind(draft) == "reasoning_delta")
    expect(thought == "first I think about it", f"The reasoning came as {thought[:80]!r}.")
    expect(text_of(drafts) == "then I answer", f"The answer came as {text_of(drafts)[:80]!r}.")
    order = [each for each in kinds(drafts) if each in ("reasoning_delta", "content_delta")]
    expect(order == sorted(order, reverse=True), "Reasoning and answer are out of order.")


@case("R2.7", "usage as counted, the unknown absent")
async def r2_7_usage(kit: Kit) -> None:
    binding = await kit.binding()
    drafts = await binding.say(kit.message((Say("x"), CountUsage(17, 4))))
    reports = [draft.payload.usage_updated for draft in drafts if kind(draft) == "usage_updated"]
    expect(len(reports) > 0, "No usage.updated came.")
    last = reports[-1]
    expect((last.input_tokens, last.output_tokens) == (17, 4), "The counts are not those that the provider gave.")
    invented = [name for name in ("cached_input_tokens", "cost") if last.HasField(name)]
    expect(not invented, f"usage.updated has {', '.join(invented)}, which the provider did not give.")


@case("R2.8", "a long text is split between characters")
async def r2_8_long_text(kit: Kit) -> None:
    binding = await kit.binding()
    # 3 bytes a character, so that no bound falls between characters by itself.
    long = "€" * 50_000
    drafts = await binding.say(kit.message((Say(pieces=(long,)),)))
    expect(text_of(drafts) == long, f"150,000 bytes of text came as {len(text_of(drafts).encode())} bytes.")
    largest = max(len(draft.payload.content_delta.text.encode()) for draft in drafts)
    kit.figures["largest_delta_bytes"] = largest
    expect(largest <= 64 * KIB, f"A delta has {largest} bytes; 64 KiB are allowed.")


@case("R2.8", "an empty delta is dropped")
async def r2_8_empty_delta(kit: Kit) -> None:
    binding = await kit.binding()
    drafts = await binding.say(kit.message((Say(pieces=("a", "", "b")),)))
    empty = [draft for draft in drafts if kind(draft) == "content_delta" and not draft.payload.content_delta.text]
    expect(not empty, "An empty delta was sent.")
    expect(text_of(drafts) == "ab", f"The text came as {text_of(drafts)[:40]!r}.")


@case("R2.8", "every draft is well formed and bounded", when=AFTER)
async def r2_8_everywhere(kit: Kit) -> None:
    _seen(kit, "R2.8")


async def _started(kit: Kit, binding: Binding) -> tuple[Run, Stream]:
    run = binding.run(kit.message((Say(pieces=("one ", "two ", "three")), Hang())))
    stream = run.start()
    # A session that the adapter names may be told before the first text.
    while text_of(stream.drafts) != "one two three" and await stream.read() is not None:
        pass
    return run, stream


@case("R2.9", "a repeated StartRun joins")
async def r2_9_joins(kit: Kit) -> None:
    binding = await kit.binding()
    run, stream = await _started(kit, binding)
    again = run.start()
    await again.read_until(3)
    expect(again.batches[0][0] == 1, f"Nothing was acknowledged, and the join begins at offset {again.batches[0][0]}.")
    expect(again.drafts[:3] == stream.drafts[:3], "The join shows other drafts than the first stream.")
    await run.ack(2)
    third = run.start()
    await third.read_until(1)
    expect(third.batches[0][0] == 3, f"Acknowledged through 2, and the join begins at offset {third.batches[0][0]}.")
    await run.cancel()
    await run.follow(third, commit=False)
    run.expect_end("run_cancelled")
    expect(text_of(run.drafts) == text_of(stream.drafts[2:]), "The turn was played again.")


@case("R2.10", "AttachRun shows the same, and ends older streams")
async def r2_10_attach(kit: Kit) -> None:
    binding = await kit.binding()
    run, stream = await _started(kit, binding)
    shown = list(stream.drafts)
    attached = run.attach(1)
    await attached.read_until(2)
    expect(attached.drafts[:2] == stream.drafts[1:3], "After offset 1 other drafts came than before.")
    while await stream.read() is not None:
        pass
    expect(stream.refusal is not None, "The older stream ended as if the run had.")
    fresh = run.attach(len(shown))
    drafts = await fresh.read()
    expect(drafts == [], "With nothing new the first response of AttachRun should come without drafts.")
    await run.cancel()
    await run.follow(fresh, commit=False)
    run.expect_end("run_cancelled")


@case("R2.11", "acknowledgements only go forward, and lose nothing")
async def r2_11_acks(kit: Kit) -> None:
    binding = await kit.binding()
    run, stream = await _started(kit, binding)
    await run.ack(2)
    await run.ack(1)
    joined = run.start()
    await joined.read_until(1)
    expect(
        joined.batches[0][0] == 3, f"After acknowledging 2, then 1, a join begins at {joined.batches[0][0]}, not at 3."
    )
    expect(joined.drafts[0] == stream.drafts[2], "The draft after the acknowledged ones is another one.")
    ahead = await kit.target.refused("AttachRun", run.attach(1_000).call.read())
    expect(ahead.code == "OUT_OF_RANGE", f"AttachRun past the last draft was refused with {ahead}.")
    behind = run.attach(0)
    if await behind.read() is None:
        refusal = behind.refusal
        expect(
            refusal is not None and refusal.code == "OUT_OF_RANGE",
            f"AttachRun at a forgotten offset ended with {behind.how_ended()}.",
        )
    else:
        first: Draft = stream.drafts[0]
        expect(behind.batches[0][0] == 1 and behind.drafts[0] == first, "AttachRun at offset 0 leaves a gap.")
    await run.cancel()


@case("R2.12", "a run that never was here")
async def r2_12_unknown_run(kit: Kit) -> None:
    binding = await kit.binding()
    run = binding.run(kit.message(SPOKEN))
    await kit.target.must_refuse("AttachRun", run.attach().call.read(), "NOT_FOUND", "run_unknown")
    await kit.target.must_refuse("AckRun", run.ack_call(0), "NOT_FOUND", "run_unknown")
    await run.play()


@case("R2.13", "no more than max_unacked_events at once, none lost")
async def r2_13_backpressure(kit: Kit) -> None:
    bound, count = 32, 300
    binding = await kit.binding(max_unacked_events=bound)
    run = binding.run(kit.driver.burst(count, 8))
    stream = run.start()
    await stream.read_until(bound)
    # One that does not wait sends its next drafts now; one that does says nothing until it is told that some are durable.
    reading = asyncio.ensure_future(stream.read())
    await asyncio.wait({reading}, timeout=QUIET_SECONDS)
    most = stream.last_offset
    while True:
        await run.ack(stream.last_offset)
        acked = stream.last_offset
        if await reading is None:
            break
        most = max(most, stream.last_offset - acked)
        reading = asyncio.ensure_future(stream.read())
    kit.figures["most_unacknowledged"] = most
    kit.setting.observations.look(run, stream)
    # A terminal may come on top.
    expect(most <= bound + 1, f"{most} drafts were sent and not acknowledged; {bound} are allowed.")
    said = sum(len(draft.payload.content_delta.text) for draft in stream.drafts if kind(draft) == "content_delta")
    expect(said == count * 8, f"{count * 8} characters were said, {said} came.")


@case("R2.14", "a lost stream does not end the run")
async def r2_14_lost_stream(kit: Kit) -> None:
    binding = await kit.binding()
    run = binding.run(kit.message((Say(pieces=LETTERS),)))
    stream = run.start()
    await stream.read_until(1)
    stream.leave()
    attached = run.attach(0)
    await run.follow(attached)
    run.expect_end("run_completed")
    expect(text_of(run.drafts) == "".join(LETTERS), "Not all of the run came after its stream was lost.")
