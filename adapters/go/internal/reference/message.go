package reference

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"harness.internal/adapters/go/internal/contract"
)

// Bounds of what a message may ask for.
const (
	maxEvents  = 10_000_000
	maxSize    = 64 << 10
	maxSeconds = 86_400
	maxRate    = 1_000_000
	maxSteps   = 10_000
	maxScripts = 1_000
)

// step is one object of a script.
type step = map[string]any

// burst is n deltas of size characters, rate per second (0: as fast as possible), the first after delay seconds.
type burst struct {
	n, size     int
	rate, delay float64
	stamp       bool
}

// scripted is one script, or one for each turn of the conversation.
type scripted struct {
	scripts [][]step
	perTurn bool
}

// parse is what a message asks for: a *burst, a *scripted, or nil for plain text. Only an instruction that is wrong in
// itself is an error.
func parse(message string) (any, error) {
	if !strings.HasPrefix(strings.TrimLeft(message, " \t\r\n"), "{") {
		return nil, nil
	}
	var fields map[string]any
	if json.Unmarshal([]byte(message), &fields) != nil {
		return nil, nil // plain text that begins with a brace
	}
	if _, ok := fields["n"]; ok {
		return parseBurst(fields)
	}
	if script, ok := fields["script"]; ok {
		steps, err := parseScript(script, "script")
		return &scripted{scripts: [][]step{steps}}, err
	}
	if scripts, ok := fields["scripts"]; ok {
		return parseScripts(scripts)
	}
	return nil, nil
}

func parseBurst(fields map[string]any) (*burst, error) {
	read := reader{fields: fields}
	asked := &burst{
		n:     int(read.whole("n", 0, maxEvents)),
		size:  int(read.whole("size", 16, maxSize)),
		rate:  read.number("rate", 0, maxRate),
		delay: read.number("delay", 0, maxSeconds),
		stamp: fields["stamp"] == true,
	}
	return asked, read.err
}

func parseScripts(value any) (*scripted, error) {
	list, ok := value.([]any)
	if !ok || len(list) == 0 || len(list) > maxScripts {
		return nil, wrong("scripts", fmt.Sprintf("a list of 1 to %d scripts", maxScripts))
	}
	asked := &scripted{perTurn: true}
	for _, item := range list {
		steps, err := parseScript(item, "scripts")
		if err != nil {
			return nil, err
		}
		asked.scripts = append(asked.scripts, steps)
	}
	return asked, nil
}

func parseScript(value any, where string) ([]step, error) {
	list, ok := value.([]any)
	if !ok || len(list) > maxSteps {
		return nil, wrong(where, fmt.Sprintf("a list of at most %d steps", maxSteps))
	}
	steps := make([]step, 0, len(list))
	for _, item := range list {
		object, ok := item.(map[string]any)
		if !ok {
			return nil, wrong(where, "made of objects, one a step")
		}
		steps = append(steps, object)
	}
	return steps, nil
}

// reader takes numbers out of an object and keeps the first error.
type reader struct {
	fields map[string]any
	err    error
}

func (r *reader) number(name string, usual, most float64) float64 {
	value, ok := r.fields[name]
	if !ok {
		return usual
	}
	number, ok := value.(float64)
	if (!ok || number < 0 || number > most) && r.err == nil {
		r.err = wrong(name, fmt.Sprintf("a number from 0 to %g", most))
	}
	return number
}

func (r *reader) whole(name string, usual, most float64) float64 {
	number := r.number(name, usual, most)
	if number != math.Trunc(number) && r.err == nil {
		r.err = wrong(name, "a whole number")
	}
	return number
}

func wrong(name, expected string) error {
	return contract.Configuration("message_invalid", fmt.Sprintf("The message's %s must be %s.", name, expected))
}
