import { HarnessError } from "../errors.js";

/** An event that breaks a rule of the vocabulary (events, Lifecycle rules). It ends the run, category `protocol` (I19). */
export class ProtocolViolation extends HarnessError {
  readonly rule: number;
  readonly violation: string;

  constructor(rule: number, violation: string, message: string) {
    super("protocol", `The harness broke the event contract: ${message}.`, { code: "protocol_violation" });
    this.rule = rule;
    this.violation = violation;
  }
}
