// Package process is what makes a program of an adapter: settings, its socket, its readiness, and its end.
package process

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"harness.internal/adapters/go/internal/host"
)

// Variables of the environment, the same that every adapter of the mesh reads.
const (
	listenVariable    = "HARNESS_LISTEN"
	tokenVariable     = "HARNESS_ADAPTER_TOKEN"
	anonymousVariable = "HARNESS_ADAPTER_ALLOW_ANONYMOUS"
	graceVariable     = "HARNESS_SHUTDOWN_GRACE_SECONDS"
	runsVariable      = "HARNESS_ADAPTER_MAX_RUNS"
	runtimesVariable  = "HARNESS_ADAPTER_MAX_RUNTIMES"
	bufferedVariable  = "HARNESS_ADAPTER_MAX_BUFFERED_BYTES"
	levelVariable     = "HARNESS_LOG_LEVEL"
)

// ConfigurationError says which setting is wrong, and what to do (I32).
type ConfigurationError struct{ message string }

// Error is the message.
func (e *ConfigurationError) Error() string { return e.message }

func misconfigured(format string, arguments ...any) error {
	return &ConfigurationError{fmt.Sprintf(format, arguments...)}
}

// Settings are how the process is run.
type Settings struct {
	Address  string
	Token    string
	Grace    time.Duration
	LogLevel slog.Level
	Limits   host.Limits
	// anonymous lets callers on loopback in without a token, for development.
	anonymous bool
}

// ReadSettings reads the command line and the environment.
func ReadSettings(arguments []string, output io.Writer) (*Settings, error) {
	flags := flag.NewFlagSet("harness-reference-go", flag.ContinueOnError)
	flags.SetOutput(output)
	address := flags.String("address", os.Getenv(listenVariable), "`unix:/path` or host:port (port 0: any)")
	if err := flags.Parse(arguments); err != nil {
		return nil, misconfigured("%v", err)
	}
	if *address == "" {
		return nil, misconfigured("-address (or %s) is missing: give unix:/path or host:port.", listenVariable)
	}
	read := &environment{}
	limits := host.DefaultLimits()
	limits.MaxRuns = int(read.number(runsVariable, float64(limits.MaxRuns), 1, 100_000))
	limits.MaxRuntimes = int(read.number(runtimesVariable, float64(limits.MaxRuntimes), 1, 1_000_000))
	limits.MaxBufferedBytes = int(read.number(bufferedVariable, float64(limits.MaxBufferedBytes), 1<<20, 1<<40))
	settings := &Settings{
		Address:   *address,
		Token:     read.secret(tokenVariable),
		Grace:     time.Duration(read.number(graceVariable, 10, 0, 3_600) * float64(time.Second)),
		LogLevel:  read.level(levelVariable),
		Limits:    limits,
		anonymous: read.switched(anonymousVariable),
	}
	if read.err != nil {
		return nil, read.err
	}
	return settings, settings.checkAccess()
}

// environment reads variables and keeps the first error.
type environment struct{ err error }

func (e *environment) fail(format string, arguments ...any) {
	if e.err == nil {
		e.err = misconfigured(format, arguments...)
	}
}

func (e *environment) number(variable string, usual, least, most float64) float64 {
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	number, err := strconv.ParseFloat(text, 64)
	if err != nil || number < least || number > most {
		e.fail("%s: %q is not a number from %g to %g.", variable, text, least, most)
	}
	return number
}

// secret is a variable's value, or the content of the file that its variant with _FILE names.
func (e *environment) secret(variable string) string {
	path := os.Getenv(variable + "_FILE")
	if path == "" {
		return os.Getenv(variable)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		e.fail("%s_FILE: cannot be read: %v.", variable, err)
	}
	return strings.TrimSpace(string(content))
}

func (e *environment) switched(variable string) bool {
	text := os.Getenv(variable)
	if text != "" && text != "0" && text != "1" {
		e.fail("%s: %q is neither 0 nor 1.", variable, text)
	}
	return text == "1"
}

func (e *environment) level(variable string) slog.Level {
	var level slog.Level
	name := os.Getenv(variable)
	if name == "warning" {
		name = "warn"
	}
	if name != "" && level.UnmarshalText([]byte(name)) != nil {
		e.fail("%s: use debug, info, warning or error.", variable)
	}
	return level
}
