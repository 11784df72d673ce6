"""Section 1: what an adapter says of itself; runtimes made, initialised and cleaned up."""

import asyncio
import secrets
from typing import Any, cast

import protovalidate
from google.protobuf import json_format

from conformance.capability_keys import CAPABILITY_KEYS
from conformance.cases.registry import AFTER, FIRST, LAST, case
from conformance.evidence import canonical
from conformance.failure import Broken, NotApplicableError, Refused, expect
from conformance.kit import Kit, plain
from conformance.plane.binding import Binding
from conformance.plane.run import TERMINALS, kind, kinds, text_of
from conformance.scenario import AskForm, FormField, Hang, Say
from harness.adapter.v1 import adapter_service_pb2
from harness.common.v1 import fence_pb2, health_pb2
from harness.runtime.v1 import runtime_pb2, runtime_service_pb2
from harness.worker.v1 import worker_service_pb2

KIB = 1024
STUCK = (Say("begun"), Hang())


@case("R1.1", "the descriptor is constant and well formed")
async def r1_1_descriptor(kit: Kit) -> None:
    first, second = await kit.describe(), await kit.describe()
    expect(first.incarnation == second.incarnation, "Two calls of GetDescriptor told two incarnations.")
    expect(first.descriptor == second.descriptor, "Two calls of GetDescriptor told two descriptors.")
    for violation in protovalidate.collect_violations(first):
        raise Broken(f"The descriptor breaks {violation.proto.rule_id}: {violation.proto.message}")
    size = first.descriptor.ByteSize()
    kit.figures["descriptor_bytes"] = size
    expect(size <= 256 * KIB, f"The descriptor has {size} bytes; 256 KiB are allowed.")
    expect(1 in first.descriptor.contract_versions, "The descriptor does not list contract version 1.")


@case("R1.1", "the descriptor and the incarnation are still what they were", when=AFTER)
async def r1_1_still(kit: Kit) -> None:
    now = await kit.describe()
    expect(now.descriptor == kit.descriptor, "The descriptor is another than at the beginning of the certification.")
    expect(
        now.incarnation == kit.setting.incarnation, "The process is another than at the beginning of the certification."
    )


@case("R1.2", "claims use the contract's keys")
async def r1_2_claims(kit: Kit) -> None:
    claims = (await kit.describe()).descriptor.capabilities
    unknown = sorted(set(claims) - set(CAPABILITY_KEYS))
    expect(not unknown, f"Unknown capability keys: {', '.join(unknown[:5])}.")
    silent = sorted(key for key, claim in claims.items() if claim.level == 0)
    expect(not silent, f"Capabilities without a level: {', '.join(silent[:5])}.")
    kit.figures["claimed"] = sum(claim.level in (1, 2) for claim in claims.values())


@case("R1.2", "the options schema is bounded and closed")
async def r1_2_options_schema(kit: Kit) -> None:
    descriptor = (await kit.describe()).descriptor
    if not descriptor.HasField("options_schema"):
        raise Broken(
            "The descriptor has no options schema; one without options is {'type': 'object', 'additionalProperties': false}."
        )
    schema = plain(descriptor.options_schema)
    expect(schema.get("type") == "object", "The options schema is not of an object.")
    expect(schema.get("additionalProperties") is False, "The options schema lets unknown options in.")
    size = len(canonical(schema))
    expect(size <= 64 * KIB, f"The options schema has {size} bytes; 64 KiB are allowed.")
    outside = [ref for ref in _references(schema) if not ref.startswith("#")]
    expect(not outside, "The options schema refers to something outside itself.")


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        own = [members["$ref"]] if isinstance(members.get("$ref"), str) else []
        return own + [ref for member in members.values() for ref in _references(member)]
    return [ref for item in cast("list[Any]", value) for ref in _references(item)] if isinstance(value, list) else []


@case("R1.3", "the same CreateRuntime finds what it made")
async def r1_3_created_once(kit: Kit) -> None:
    binding = kit.unmade()
    expect(await binding.create(), "The first CreateRuntime answered created = false.")
    incarnation = binding.incarnation
    expect(not await binding.create(), "The same CreateRuntime again answered created = true.")
    expect(binding.incarnation == incarnation, "The same CreateRuntime again told another incarnation.")
    expect((await kit.describe()).incarnation == incarnation, "CreateRuntime and GetDescriptor tell two incarnations.")


@case("R1.4", "a higher generation replaces the runtime for good")
async def r1_4_replaced(kit: Kit) -> None:
    binding = await kit.binding()
    run = binding.run(kit.message(STUCK))
    stream = run.start()
    await stream.read_until(1)
    older = binding.fence()
    await binding.replace()
    # However it ends, it ends: by its terminal, or because its runtime is gone.
    while await stream.read() is not None:
        pass
    kit.setting.observations.look(run, stream)
    refuse = kit.target.must_refuse
    await refuse("CreateRuntime", binding.create_call(older), "FAILED_PRECONDITION", "STALE_LEASE")
    await refuse("Initialize", binding.initialize_call(older), "FAILED_PRECONDITION", "STALE_LEASE")
    late = binding.run(kit.message((Say("late"),)), runtime_generation=1)
    await refuse("StartRun", late.start().call.read(), "FAILED_PRECONDITION", "STALE_LEASE")
    drafts = await binding.say(kit.message((Say("young"),)))
    expect(text_of(drafts) == "young", f"The replaced runtime's successor said {text_of(drafts)[:80]!r}.")


@case("R1.5", "Initialize is idempotent")
async def r1_5_initialize(kit: Kit) -> None:
    binding = await kit.binding()
    answers: list[str] = []
    for _ in range(3):
        try:
            response = await kit.target.ask("Initialize", binding.initialize_call())
            answers.append(f"initialized = {str(response.initialized).lower()}")
        except Refused as refused:
            answers.append(str(refused))
    expect(len(set(answers[1:])) == 1, f"Repeated Initialize answered differently: {answers[1:]}.")
    if answers[0].startswith("initialized"):
        # A worker's runtime may have been initialised by a turn before.
        fresh = kit.shared is None
        expect(not fresh or answers[0] == "initialized = true", f"The first Initialize answered {answers[0]}.")
        expect(answers[1] == "initialized = false", f"The second Initialize answered {answers[1]}.")
    else:
        expect(answers[0] == answers[1], f"Initialize failed with {answers[0]}, then answered {answers[1]}.")


@case("R1.6", "a runtime that never was, and one that is no more")
async def r1_6_unknown_and_gone(kit: Kit) -> None:
    binding = kit.unmade()
    run = binding.run(kit.message((Say("x"),)))
    run.incarnation = (await kit.describe()).incarnation
    await kit.target.must_refuse("StartRun", run.start().call.read(), "NOT_FOUND", "runtime_unknown")
    await binding.create()
    await binding.cleanup()
    again = binding.run(kit.message((Say("x"),)))
    await kit.target.must_refuse("StartRun", again.start().call.read(), "NOT_FOUND", "runtime_gone")
    await kit.target.must_refuse("Initialize", binding.initialize_call(), "NOT_FOUND", "runtime_gone")


@case("R1.7", "Cleanup may come twice, and for nothing")
async def r1_7_cleanup_again(kit: Kit) -> None:
    await kit.unmade().cleanup()
    binding = await kit.binding()
    await binding.say(kit.message((Say("x"),)))
    await binding.cleanup()
    await binding.cleanup()


@case("R1.8", "Cleanup ends a run that hangs, within its deadline")
async def r1_8_cleanup_in_time(kit: Kit) -> None:
    binding = await kit.binding()
    run = binding.run(kit.message(STUCK))
    stream = run.start()
    await stream.read_until(1)
    # The deadline of the call: a Cleanup that passes it fails the case.
    await binding.cleanup(seconds=20)
    while await stream.read() is not None:
        pass
    kit.setting.observations.look(run, stream)
    # It may break off with what it served, but not end as if the run were told to its end.
    expect(not stream.ended or kind(stream.drafts[-1]) in TERMINALS, "The stream ended without a terminal.")


@case("R1.9", "Restart does not work beside a run")
async def r1_9_one_at_a_time(kit: Kit) -> None:
    binding = await kit.binding()
    run = binding.run(kit.message(STUCK))
    stream = run.start()
    await stream.read_until(1)
    restart = asyncio.ensure_future(binding.restart_call())
    waited, _ = await asyncio.wait({restart}, timeout=2)
    if waited:
        refusal = await kit.target.refused("Restart", restart)
        expect(refusal.code == "ABORTED", f"Restart while a run works was refused with {refusal}, not with ABORTED.")
    await run.cancel()
    drafts = await run.follow(stream)
    expect(kinds(drafts)[-1] == "run_cancelled", f"Beside a Restart the run ended with {kinds(drafts)[-1]}.")
    if not waited:
        # It waited for the run, whose terminal is here: now it has to work.
        await kit.target.ask("Restart", restart)


@case("R1.10", "another incarnation starts nothing")
async def r1_10_incarnation(kit: Kit) -> None:
    binding = await kit.binding()
    run = binding.run(kit.message((Say("x"),)))
    other = secrets.token_hex(16)
    refuse = kit.target.must_refuse
    await refuse("StartRun", run.start(incarnation=other).call.read(), "FAILED_PRECONDITION", "incarnation_mismatch")
    await refuse("AttachRun", run.attach(incarnation=other).call.read(), "FAILED_PRECONDITION", "incarnation_mismatch")
    await refuse("AttachRun", run.attach().call.read(), "NOT_FOUND", "run_unknown")
    expect(text_of(await run.play()) == "x", "The run did not start afterwards.")


@case("R1.11", "malformed requests have no effect")
async def r1_11_malformed(kit: Kit) -> None:
    binding = await kit.binding()
    run = binding.run(kit.message((Say("x"),)))
    for what, change in (
        ("no run_id", {"run_id": ""}),
        ("no turn", {"turn": 0}),
        ("no run_generation", {"run_generation": 0}),
        ("a run_id with a space", {"run_id": "run 1"}),
    ):
        fence = fence_pb2.Fence()
        fence.CopyFrom(run.fence)
        for name, value in change.items():
            setattr(fence, name, value)
        refusal = await kit.target.refused("StartRun", run.start(fence=fence).call.read())
        expect(refusal.code == "INVALID_ARGUMENT", f"StartRun with {what} was refused with {refusal}.")
    await kit.target.must_refuse("AttachRun", run.attach().call.read(), "NOT_FOUND", "run_unknown")
    expect(text_of(await run.play()) == "x", "The well-formed run did not start afterwards.")


@case("R1.11", "another protocol version is refused")
async def r1_11_protocol_version(kit: Kit) -> None:
    binding = await kit.binding()
    run = binding.run(kit.message((Say("x"),)))
    fence = binding.fence(run.fence.turn, run.fence.run_id, protocol_version=7)
    refuse = kit.target.must_refuse
    await refuse("StartRun", run.start(fence=fence).call.read(), "FAILED_PRECONDITION", "WORKER_MISMATCH")
    await refuse("Initialize", binding.initialize_call(fence), "FAILED_PRECONDITION", "WORKER_MISMATCH")
    await run.play()


@case("R1.11", "a decision without an answer is refused, and the interrupt still waits")
async def r1_11_no_answer(kit: Kit) -> None:
    if not kit.claims("interrupt.form_input"):
        raise NotApplicableError("The target claims no interrupt.form_input, so it asks nothing.")
    binding = await kit.binding()
    run = binding.run(kit.message((AskForm((FormField("city"),)),)))
    await run.play()
    asked = run.expect_end("run_interrupted").payload.run_interrupted.interrupt_id
    bare = runtime_pb2.ResumeDecision(interrupt_id=asked, revision=1)
    resumed = binding.resumed(run, bare)
    await kit.target.must_refuse("ResumeRun", resumed.start().call.read(), "INVALID_ARGUMENT")
    bare.dismiss, bare.interrupted_run_id = True, run.fence.run_id
    resumed.decision = bare
    await resumed.play()
    resumed.expect_end("run_completed")


@case("R1.12", "refusals have the contract's form", when=AFTER)
async def r1_12_refusals(kit: Kit) -> None:
    seen = kit.target.refusals
    # What a proxy or the library itself says has no details, and so has the end of a call that the kit gave up.
    own = [refusal for refusal in seen if refusal.code not in ("CANCELLED", "DEADLINE_EXCEEDED", "UNAVAILABLE")]
    if not own:
        binding = await kit.binding()
        run = binding.run(kit.message((Say("x"),)))
        own = [await kit.target.refused("AttachRun", run.attach().call.read())]
    kit.figures["refusals"] = len(own)
    codes = {"INVALID_ARGUMENT": 3, "NOT_FOUND": 5, "FAILED_PRECONDITION": 9, "ABORTED": 10, "OUT_OF_RANGE": 11}
    for refusal in own:
        where = f"The refusal of {refusal.method} ({refusal.code})"
        expect(refusal.status_code is not None, f"{where} has no google.rpc.Status.")
        expect(refusal.reason != "", f"{where} has no ErrorInfo with a reason.")
        expect(refusal.domain == "harness", f"{where} has an ErrorInfo of domain {refusal.domain!r}.")
        wanted = codes.get(refusal.code, refusal.status_code)
        expect(refusal.status_code == wanted, f"{where} has a Status of code {refusal.status_code}.")


@case("R1.13", "health is bounded, valid, and disturbs nothing")
async def r1_13_health(kit: Kit) -> None:
    binding = await kit.binding()
    run = binding.run(kit.message(STUCK))
    stream = run.start()
    await stream.read_until(1)
    report = await kit.health()
    for violation in protovalidate.collect_violations(report):
        raise Broken(f"The health report breaks {violation.proto.rule_id}.")
    expect(report.status != health_pb2.HEALTH_STATUS_UNSPECIFIED, "The health report has no status.")
    if report.HasField("capacity"):
        active = report.capacity.active
        kit.figures["active"] = active
        expect(active >= 1, "Capacity counts no run, and one is at work.")
    await run.cancel()
    await run.follow(stream)
    run.expect_end("run_cancelled")


@case("R1.14", "Evaluate is pure")
async def r1_14_evaluate(kit: Kit) -> None:
    binding = kit.unmade()

    async def evaluate(name: str) -> Any:
        blueprint = binding.blueprint()
        blueprint.name = name
        request = adapter_service_pb2.EvaluateRequest(blueprint=blueprint, placement=kit.setting.placement)
        json_format.ParseDict(kit.setting.profile_settings, request.profile_settings)
        call = kit.target.adapter.Evaluate(request, timeout=30, metadata=kit.target.metadata)
        return await kit.target.ask("Evaluate", call)

    first, _, second = await evaluate("Certification"), await evaluate("Another"), await evaluate("Certification")
    expect(first == second, "The same blueprint got two answers.")
    expect(not first.issues, f"The kit's small agent cannot run: {first.issues[0].message if first.issues else ''}")
    if first.HasField("normalized_options"):
        schema = plain(kit.descriptor.options_schema)
        stray = sorted(set(plain(first.normalized_options)) - set(schema.get("properties", {})))
        expect(not stray, f"Normalised options are none of the schema's: {', '.join(stray[:5])}.")


@case("R1.15", "a worker is bound once, for life", when=FIRST)
async def r1_15_bind(kit: Kit) -> None:
    shared = kit.shared
    if shared is None:
        raise Broken("There is no worker to bind.")
    before = await kit.readiness()
    expect(1 in before.protocol_versions, "GetReadiness does not name protocol version 1.")
    expect(before.harness_id == kit.descriptor.harness_id, "GetReadiness names another harness than the descriptor.")
    expect(not before.bound, "The worker is bound already: a certification needs a fresh one.")
    context, fence = shared.context(), shared.fence()
    refuse, bind = kit.target.must_refuse, shared.create_call
    await refuse("Bind", bind(fence, "another_harness", context), "FAILED_PRECONDITION", "WORKER_MISMATCH")
    for _ in range(2):
        response = await kit.target.ask("Bind", bind(fence, "", context))
        expect(response.incarnation == before.incarnation, "Bind and GetReadiness tell two incarnations.")
    shared.incarnation = before.incarnation
    changes: tuple[dict[str, Any], ...] = ({"binding_id": "kit-another"}, {"epoch": 2}, {"runtime_generation": 2})
    for change in changes:
        await refuse("Bind", bind(shared.fence(**change), "", context), "FAILED_PRECONDITION", "STALE_LEASE")
    other = runtime_pb2.RuntimeContext()
    other.CopyFrom(context)
    other.agent_version = 2
    await refuse("Bind", bind(fence, "", other), "FAILED_PRECONDITION", "STALE_LEASE")
    after = await kit.readiness()
    expect(after.bound and after.ready, "The bound worker does not say that it is bound and ready.")


@case("R1.16", "Shutdown ends the worker", when=LAST)
async def r1_16_shutdown(kit: Kit) -> None:
    if not kit.workers:
        raise Broken("There is no worker to shut down.")
    for worker in kit.workers:
        await worker.bound()
        await _shut_down(kit, worker)


async def _shut_down(kit: Kit, shared: Binding) -> None:
    target = shared.target

    def shutdown(**changes: Any) -> Any:
        request = worker_service_pb2.ShutdownRequest(fence=shared.fence(**changes))
        request.grace.seconds = 10
        return target.worker.Shutdown(request, timeout=30, metadata=target.metadata)

    await target.must_refuse("Shutdown", shutdown(runtime_generation=2), "FAILED_PRECONDITION", "STALE_LEASE")
    run = shared.run(kit.message(STUCK))
    stream = run.start()
    await stream.read_until(1)
    await target.ask("Shutdown", shutdown())
    while await stream.read() is not None:
        pass

    async def gone() -> bool:
        request = runtime_service_pb2.InitializeRequest(fence=shared.fence())
        try:
            await target.runtime.Initialize(request, timeout=5, metadata=target.metadata)
        except Exception as error:  # noqa: BLE001 - whatever the library says of a peer that is gone
            return "UNAVAILABLE" in str(error) or "DEADLINE_EXCEEDED" in str(error)
        return False

    expect(await kit.until(gone, 30), "The worker still serves 30 seconds after its Shutdown was answered.")
