"""The numbered rules of the adapter contract, as the kit holds an endpoint to them. `R5.3` is rule 3 of section 5.

A rule applies when every capability it names is claimed `native` or `emulated`, or one of those it names as alternatives; one that names none
applies to everybody. Each has at least one case in `conformance/cases`, named for it. In the texts, "refused" is a gRPC status before the stream, with
the reason of its `google.rpc.ErrorInfo` in quotes; "the run fails" is its terminal event `run.failed`.
"""

from dataclasses import dataclass

ADAPTER = "adapter"
WORKER = "worker"
BOTH = (ADAPTER, WORKER)
FILES = "input.images input.documents"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what must be so, for whom, and in which placements it can be looked at."""

    id: str
    text: str
    # All of them must be claimed for the rule to apply; none: it applies to everybody.
    capabilities: tuple[str, ...] = ()
    placements: tuple[str, ...] = BOTH
    # One of them must be claimed besides; none: nothing more is asked.
    either: tuple[str, ...] = ()
    # What it says something of, where that is not all that has to be claimed.
    of: tuple[str, ...] = ()

    @property
    def section(self) -> int:
        """The section of the contract's suite, 1–12."""
        return int(self.id[1:].partition(".")[0])

    @property
    def about(self) -> tuple[str, ...]:
        """Capabilities that it says something of."""
        return self.of or self.capabilities + self.either


def _rule(
    rule_id: str,
    text: str,
    capabilities: str = "",
    placements: tuple[str, ...] = BOTH,
    *,
    either: str = "",
    of: str = "",
) -> Rule:
    return Rule(rule_id, text, tuple(capabilities.split()), placements, tuple(either.split()), tuple(of.split()))


RULES: tuple[Rule, ...] = (
    # --- 1 initialise and clean up ---
    _rule(
        "R1.1",
        "GetDescriptor answers the same descriptor and the same incarnation every time; the descriptor satisfies the constraints of its message, is "
        "at most 256 KiB and lists contract version 1.",
        placements=(ADAPTER,),
    ),
    _rule(
        "R1.2",
        "Every capability key of the descriptor is one of the 38 of the contract and states a level. The options schema is of an object, refuses "
        "unknown options (additionalProperties false), has 64 KiB at most and references inside itself only.",
        placements=(ADAPTER,),
    ),
    _rule(
        "R1.3",
        "CreateRuntime makes a runtime once: the first call answers created = true, the same call again created = false with the same incarnation.",
        placements=(ADAPTER,),
    ),
    _rule(
        "R1.4",
        "A higher runtime generation replaces the runtime and ends its run; from then on the lower one is refused with FAILED_PRECONDITION, "
        "'STALE_LEASE', in CreateRuntime, Initialize and StartRun.",
        "runtime.lease_fencing",
        (ADAPTER,),
    ),
    _rule(
        "R1.5",
        "Initialize is idempotent: the first call answers initialized = true and every further one initialized = false, or all of them fail with the "
        "same error.",
    ),
    _rule(
        "R1.6",
        "A runtime that never was here is refused with NOT_FOUND, 'runtime_unknown'; one that was cleaned up with NOT_FOUND, 'runtime_gone'.",
        placements=(ADAPTER,),
    ),
    _rule(
        "R1.7",
        "Cleanup is idempotent: it succeeds again for a runtime that is gone, and for one that never was.",
        placements=(ADAPTER,),
    ),
    _rule(
        "R1.8",
        "Cleanup while a run works ends within its deadline, and the run with it: the open stream gets a terminal event or breaks, and is never left "
        "open.",
        "runtime.bounded_cleanup",
        (ADAPTER,),
    ),
    _rule(
        "R1.9",
        "One mutating operation at a time: Restart while a run works is refused with ABORTED, or answers only after the run's terminal; it does not "
        "disturb the run.",
        "runtime.restart",
    ),
    _rule(
        "R1.10",
        "StartRun and AttachRun for another incarnation are refused with FAILED_PRECONDITION, 'incarnation_mismatch', and nothing is started.",
    ),
    _rule(
        "R1.11",
        "A request that breaks the contract's constraints (a fence of a run without run_id, turn or run_generation; forbidden characters in a run_id; "
        "a decision without an answer) is refused with INVALID_ARGUMENT before any effect; a protocol_version other than 1 with FAILED_PRECONDITION, "
        "'WORKER_MISMATCH'.",
    ),
    _rule(
        "R1.12",
        "Every refusal carries a google.rpc.Status (grpc-status-details-bin) with the code of the call and an ErrorInfo of domain 'harness' with a "
        "reason.",
    ),
    _rule(
        "R1.13",
        "CheckHealth answers within its deadline with a status and valid checks; while a run works, capacity, if given, counts it, and the run goes "
        "on.",
        placements=(ADAPTER,),
    ),
    _rule(
        "R1.14",
        "Evaluate is pure: the same blueprint gets the same answer, whatever was asked between, and normalised options are properties of the options "
        "schema.",
        placements=(ADAPTER,),
    ),
    _rule(
        "R1.15",
        "Bind is once for life: the same bind again is confirmed with the same incarnation; another binding, epoch, runtime generation or context is "
        "refused with FAILED_PRECONDITION, 'STALE_LEASE', another harness with 'WORKER_MISMATCH'. GetReadiness names protocol version 1, the harness "
        "and the incarnation, and whether the worker is bound.",
        placements=(WORKER,),
    ),
    _rule(
        "R1.16",
        "Shutdown with another fence is refused with FAILED_PRECONDITION, 'STALE_LEASE'; with its own it answers within its grace, and the worker "
        "then stops serving.",
        "runtime.bounded_cleanup",
        (WORKER,),
    ),
    # --- 2 streaming and order ---
    _rule("R2.1", "Offsets of a run start at 1 and rise by one per draft, without a gap within or across batches."),
    _rule("R2.2", "A runtime never sends run.started: the engine writes it."),
    _rule(
        "R2.3",
        "A run has exactly one terminal event, and nothing after it: what a provider says after its end is discarded.",
    ),
    _rule("R2.4", "After the terminal the stream ends by itself with status OK, and it never ends so without one."),
    _rule(
        "R2.5",
        "Text arrives whole and in order: one message_id throughout a message of the provider, another for the next one.",
        "stream.text",
    ),
    _rule(
        "R2.6", "Reasoning arrives as reasoning.delta, whole and in order, and never as content.", "stream.reasoning"
    ),
    _rule("R2.7", "Usage arrives as the provider counted it; what is not known is absent, not zero.", "stream.usage"),
    _rule(
        "R2.8",
        "Every draft satisfies the constraints of its message and has at most 256 KiB. A text over 64 KiB is split between characters, never cut; an "
        "empty delta is dropped.",
        "stream.text",
    ),
    _rule(
        "R2.9",
        "StartRun of a run that is here joins it from the first unacknowledged draft; the turn is not played again.",
    ),
    _rule(
        "R2.10",
        "AttachRun streams the drafts after its offset, as they were sent before, and ends older streams of the run; with nothing new its first "
        "response comes without drafts.",
    ),
    _rule(
        "R2.11",
        "AckRun is monotonic: a lower offset changes nothing, and no draft after the highest acknowledged offset is lost. AttachRun past the last "
        "draft is refused with OUT_OF_RANGE; at an offset already acknowledged it is refused so, or leaves no gap.",
    ),
    _rule("R2.12", "AttachRun and AckRun of a run that never was here are refused with NOT_FOUND, 'run_unknown'."),
    _rule(
        "R2.13",
        "At most max_unacked_events drafts (a terminal on top) are sent and not acknowledged; past that the runtime waits, and drops nothing.",
        placements=(ADAPTER,),
    ),
    _rule("R2.14", "Losing the stream does not end the run: it goes on, and AttachRun gets all of it."),
    # --- 3 tools ---
    _rule(
        "R3.1",
        "A portable tool is called through InvokeTool with the run's whole fence, the run's token of audience 'tool' as bearer, the stable tool_id "
        "and the arguments as given.",
        "tool.builtin",
    ),
    _rule(
        "R3.2",
        "The broker's success is told as tool.started, then one tool.completed with outcome success and the broker's result, under the tool_call_id "
        "that the broker got.",
        "tool.builtin",
    ),
    _rule(
        "R3.3",
        "Arguments that stream come as tool.started without arguments, then tool.arguments.delta; joined they are the JSON object that the broker "
        "got, and they all precede the completion.",
        "tool.builtin",
    ),
    _rule(
        "R3.4",
        "The broker's error is told as tool.completed with outcome error and the broker's code, its rejection with outcome rejected. The call is not "
        "made again under another id, and the run goes on.",
        "tool.builtin",
    ),
    _rule(
        "R3.5",
        "A refusal of the broker (a gRPC status, not retryable) is never told as success: the call completes with outcome error, or the run fails.",
        "tool.builtin",
    ),
    _rule("R3.6", "Several calls of a run go under distinct ids, and each gets its own outcome.", "tool.builtin"),
    _rule(
        "R3.7",
        "approval_required interrupts the run: interrupt.requested of type tool_approval with exactly the broker's call (id, tool, arguments, allowed "
        "decisions), then run.interrupted; the call has not started.",
        "tool.builtin interrupt.tool_approval",
    ),
    _rule(
        "R3.8",
        "An approved call is invoked again by the resumed run under the same tool_call_id with the same arguments, and only then started and "
        "completed.",
        "tool.builtin interrupt.tool_approval",
    ),
    _rule(
        "R3.9",
        "An edited call goes through the broker again under the same tool_call_id, and what the broker answers is told, also its refusal of the "
        "edited arguments.",
        "tool.builtin interrupt.tool_approval",
    ),
    _rule("R3.10", "A call that a person rejected is never told as success.", "tool.builtin interrupt.tool_approval"),
    _rule(
        "R3.11",
        "A tool of the provider's own is told as tool.started, then one tool.completed with its result or error, and never reaches the broker.",
        "tool.builtin",
    ),
    # --- 4 partial availability ---
    _rule(
        "R4.1",
        "A tool that is away costs its own call alone: that call completes with outcome error, another tool of the same run works, and the run "
        "completes.",
        "tool.builtin tool.partial_availability",
    ),
    # --- 5 sessions, state, takeover ---
    _rule("R5.1", "A turn knows what was said in the turns before it.", "session.multi_turn"),
    _rule(
        "R5.2",
        "run.completed names in pending_head exactly the parts that WriteParts of this run returned, in order, and every write was answered before "
        "it; a turn that leaves state never completes without.",
        "thread.durable_commit",
    ),
    _rule(
        "R5.3",
        "Calls of the state facade carry the run's whole fence and the run's token of audience 'state' as bearer.",
        "thread.durable_commit",
    ),
    _rule(
        "R5.4",
        "A runtime goes on from the committed head alone: what an earlier run wrote and nobody committed is not known to the next turn of a new "
        "runtime.",
        "thread.eviction_restore session.multi_turn",
        (ADAPTER,),
    ),
    _rule(
        "R5.5",
        "Restart keeps the conversation: the next turn knows the turns before it.",
        "runtime.restart session.multi_turn",
    ),
    _rule(
        "R5.6",
        "A runtime of a higher generation, on another replica where one is given, goes on with the conversation.",
        "session.cross_replica_resume session.multi_turn",
        (ADAPTER,),
    ),
    _rule(
        "R5.7",
        "A conversation survives the loss of its runtime: cleaned up and made again under a higher generation, it completes the next turn and knows "
        "the ones before.",
        "runtime.eviction_recovery session.multi_turn",
        (ADAPTER,),
    ),
    _rule("R5.8", "A new epoch knows nothing of the old one.", "session.clear", (ADAPTER,)),
    _rule(
        "R5.9",
        "Two bindings at work at once know nothing of each other, and each gets its own answers.",
        placements=(ADAPTER,),
    ),
    _rule(
        "R5.10",
        "State that is committed but cannot be loaded, and state that cannot be written, fail the run with category persistence: a conversation never "
        "begins anew by itself, and never completes without its state.",
        "thread.durable_commit session.multi_turn",
    ),
    _rule(
        "R5.11",
        "After a call with a higher run_generation, every call of the run with a lower one is refused with FAILED_PRECONDITION, 'STALE_LEASE': "
        "StartRun, AttachRun, AckRun, CancelRun.",
        "runtime.lease_fencing",
    ),
    _rule(
        "R5.12",
        "A lower turn, and the same turn for another run, are refused with FAILED_PRECONDITION, 'STALE_LEASE', and start nothing.",
        "runtime.lease_fencing",
    ),
    _rule(
        "R5.13",
        "A higher turn ends what the older turn still does: the older run ends as run.cancelled, reason superseded, and the new one completes.",
        "runtime.lease_fencing",
    ),
    _rule(
        "R5.14",
        "Native sessions: session.updated carries a native id of one line of printable ASCII, 512 characters at most, at the root; no other draft "
        "carries one. OpenSession gives the same binding and epoch the same id; CloseSession succeeds twice, and for what never was.",
    ),
    # --- 6 interrupts ---
    _rule(
        "R6.1",
        "A question is interrupt.requested of type form_input with the fields as asked, then run.interrupted that names it; only closing events stand "
        "between the two.",
        "interrupt.form_input",
    ),
    _rule(
        "R6.2",
        "GetPendingInterrupt names the interrupt and its run while it waits, and nothing once a resume has gone on with it.",
        "interrupt.form_input",
    ),
    _rule(
        "R6.3",
        "The values of the form reach the provider as they were given, and a dismissal as a dismissal; the resumed run completes.",
        "interrupt.form_input",
    ),
    _rule(
        "R6.4",
        "A pause outlives its runtime: a new runtime of a higher generation resumes it from the head that run.interrupted left in its pending_head.",
        "interrupt.form_input thread.eviction_restore",
        (ADAPTER,),
    ),
    _rule(
        "R6.5",
        "A decision on another interrupt, or on another run's, goes on with nothing: it is refused or its run fails, and the right decision still "
        "works.",
        "interrupt.form_input",
    ),
    _rule(
        "R6.6",
        "ResumeRun of a run that is here joins it from the first unacknowledged draft; the decision is not used again.",
        "interrupt.form_input",
    ),
    _rule(
        "R6.7",
        "A decision is consumed once: a further run with a decision on the same interrupt is refused or fails.",
        "interrupt.form_input",
    ),
    _rule(
        "R6.8",
        "A question for approval, of calls of the provider's own or, where it asks about none, of portable tools, is interrupt.requested of type "
        "tool_approval with the calls as asked (id, tool, arguments, allowed decisions), none of which has started; approve, reject with its reason "
        "and edit with its arguments reach the provider.",
        "interrupt.tool_approval",
    ),
    _rule(
        "R6.9",
        "One interrupt asks about several calls, and each gets its own decision.",
        "interrupt.tool_approval interrupt.multi_tool",
    ),
    # --- 7 cancel ---
    _rule(
        "R7.1",
        "A cancel before the run comes is remembered: it answers already_ended = false, side effects none, and a later StartRun of that run is "
        "refused, or shows run.cancelled alone.",
        "runtime.cancel",
    ),
    _rule(
        "R7.2",
        "A cancel ends a run that works, also one whose provider hangs, within its grace and thirty seconds: when it is answered, the terminal "
        "run.cancelled with the reason given is there, and nothing follows it.",
        "runtime.cancel",
    ),
    _rule(
        "R7.3",
        "A cancel after the end, completed or interrupted, changes nothing and answers already_ended = true.",
        "runtime.cancel",
    ),
    _rule(
        "R7.4",
        "Cancel is idempotent: repeated, also at once by several callers, it succeeds and leaves one terminal.",
        "runtime.cancel",
    ),
    _rule("R7.5", "A run past its deadline ends by itself as run.cancelled, reason deadline."),
    _rule(
        "R7.6",
        "A cancelled run that showed output does not say side effects none, neither in the answer nor in the terminal.",
        "runtime.cancel",
    ),
    _rule(
        "R7.7",
        "A cancel while a tool call is open never tells the call as success, and does not wait for the broker.",
        "runtime.cancel tool.builtin tool.cancellation",
    ),
    _rule(
        "R7.8",
        "A run whose stream stays lost for detach_grace_seconds is cancelled by the runtime.",
        placements=(ADAPTER,),
    ),
    # --- 8 files and limits ---
    _rule(
        "R8.1",
        "A message of 1 MiB is taken; a longer one is refused with INVALID_ARGUMENT or RESOURCE_EXHAUSTED, and starts nothing.",
    ),
    _rule(
        "R8.2",
        "An image given with the message reaches the model as its owner uploaded it, in each media type that the claim lists and the kit has an example "
        "of. One that is large enough to come in several pieces reaches it too, in another encoding if need be: providers make images smaller.",
        "input.images",
    ),
    _rule(
        "R8.3",
        "A document given with the message reaches the model whole and as its owner uploaded it, in each media type that the claim lists and the kit "
        "has an example of, also where it comes in several pieces.",
        "input.documents",
    ),
    _rule("R8.4", "Several files reach the model in the order in which they were given.", either=FILES),
    _rule(
        "R8.5",
        "Files are read through ReadFile with the run's whole fence and the run's token of audience 'files' as bearer, and through nothing else. A run "
        "asks for no file but those that it names: none of an earlier turn, and none at all where it names none.",
        either=FILES,
    ),
    _rule(
        "R8.6",
        "A file that cannot be read (gone, refused, damaged on its way) never passes for one that was: the run fails with a category other than "
        "internal, or goes on without it behind a warning. Neither tells what the facade said, or anything of the content.",
        either=FILES,
    ),
    _rule(
        "R8.7",
        "A claim states its limits, so that nobody sends what cannot be taken: max_files and max_bytes, whole numbers from 1, and media_types, a list "
        "of lower-case media types or families such as image/*: of images alone for input.images, of no images for input.documents.",
        either=FILES,
    ),
    _rule(
        "R8.8",
        "The limits are what the claim says. As many files as it allows are taken, and one as large as it allows (up to 8 MiB) of one of its media types "
        "at least; one that is larger, too many, or of another media type is refused, fails the run with category configuration, or is left out behind a "
        "warning, and never reaches the model.",
        either=FILES,
    ),
    _rule(
        "R8.9",
        "Nothing of a file's content stands in any draft, unless the model says it.",
        either=FILES,
    ),
    _rule(
        "R8.10",
        "Two bindings that read files at once get their own, each with the token of its own run.",
        placements=(ADAPTER,),
        either=FILES,
    ),
    # --- 9 skills ---
    _rule(
        "R9.1",
        "A skill that an agent names and the profile has is there for the model, with what the profile gives as its content.",
        "skills",
    ),
    _rule(
        "R9.2",
        "Evaluate has an issue, and so refuses, for each skill that an agent names and the profile does not have: its path is skills[n], its code in "
        "lower snake case, its message names the skill and says what to do. Skills that the profile has get none.",
        "skills",
        (ADAPTER,),
    ),
    _rule(
        "R9.3",
        "An agent never runs silently without a skill that is missing: its runtime is not made or not initialised, or its run fails with category "
        "configuration before the model says anything.",
        "skills",
        (ADAPTER,),
    ),
    _rule(
        "R9.4",
        "A skill that the profile has and that is blocked, or cannot be read, is refused as a missing one is: by Evaluate, or when the runtime is made, "
        "initialised or run. The agent never runs silently without it, and never with it.",
        "skills",
        (ADAPTER,),
    ),
    _rule(
        "R9.5",
        "The model of one agent has that agent's skills alone: a skill of the profile that the agent does not name, though another binding's agent at "
        "work does, does not work for it.",
        "skills",
        (ADAPTER,),
    ),
    # --- 10 subagents ---
    _rule(
        "R10.1",
        "A subagent's events stand between subagent.started and one subagent.completed of the same agent_id and parent call, and carry its path; the "
        "root's carry none. Inner subagents, unless the claim says that there are none (max_depth 1), carry their parent's path and their own id, and "
        "close first.",
        "subagents",
    ),
    _rule(
        "R10.2",
        "An interrupt inside a subagent interrupts the whole run: closing events only, then run.interrupted at the root.",
        "subagents interrupt.form_input",
        of="subagents",
    ),
    # --- 11 faults ---
    _rule(
        "R11.1",
        "A classified failure ends the run as run.failed with its category, a code in lower snake case and its message: each of the eleven "
        "categories.",
    ),
    _rule(
        "R11.2",
        "retryable follows the category: true for capacity, throttled and unavailable, false for configuration, authorization, protocol, cancelled "
        "and internal, unless the provider says otherwise; a known retry interval is told.",
    ),
    _rule(
        "R11.3",
        "An unclassified exception ends the run as run.failed, category internal, not retryable, side effects not none, with nothing of its text in "
        "any event.",
    ),
    _rule(
        "R11.4",
        "An event out of order (a completion of a call that never started) fails the run with category protocol, and is not sent.",
    ),
    _rule(
        "R11.5",
        "A malformed event (an id with forbidden characters) or an oversized one (over 256 KiB) fails the run with category protocol, and is not "
        "sent.",
    ),
    _rule("R11.6", "The runtime takes the next turn after a failed and after a cancelled run."),
    _rule("R11.7", "One binding that floods, hangs or fails changes no other binding's runs.", placements=(ADAPTER,)),
    # --- 12 observability and leaks ---
    _rule(
        "R12.1",
        "No capability token, bearer token, profile setting or system prompt that the kit planted comes back in a draft, status, health report or "
        "readiness, in any case of the certification.",
    ),
    _rule(
        "R12.2",
        "Calls to facades carry the run's trace: the traceparent of their fence has the trace id of the run's.",
        "observability.trace_propagation thread.durable_commit",
    ),
    _rule(
        "R12.3",
        "Of bindings that were cleaned up nothing is left that the kit can see: capacity, if given, counts none of their runs as active; no call of theirs "
        "to a facade is open or follows; connections to the facades do not grow with bindings that come and go, and neither do, where the kit is told "
        "the target's process, its child processes and open descriptors.",
        placements=(ADAPTER,),
    ),
)

RULES_BY_ID: dict[str, Rule] = {rule.id: rule for rule in RULES}
