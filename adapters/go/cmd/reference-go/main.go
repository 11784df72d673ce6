// Command reference-go serves the reference harness in Go as an adapter host.
package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"

	"harness.internal/adapters/go/internal/host"
	"harness.internal/adapters/go/internal/process"
	"harness.internal/adapters/go/internal/reference"
	"harness.internal/adapters/go/internal/server"
)

const (
	service = "adapters.go"
	// exitConfiguration is the status of a process whose settings are wrong.
	exitConfiguration = 2
)

func main() {
	err := run(os.Args[1:])
	var misconfigured *process.ConfigurationError
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.As(err, &misconfigured):
		fmt.Fprintln(os.Stderr, "configuration error:", err)
		os.Exit(exitConfiguration)
	default:
		fmt.Fprintln(os.Stderr, service, "stopped:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	settings, err := process.ReadSettings(arguments, os.Stderr)
	if err != nil {
		return err
	}
	logs := slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: settings.LogLevel})
	slog.SetDefault(slog.New(logs).With("service", service))
	ready, err := process.TakeReadiness()
	if err != nil {
		return err
	}
	if err := process.DieWithParent(); err != nil {
		return err
	}
	harness, err := reference.New()
	if err != nil {
		return err
	}
	// Random for each process: what was issued to one is never continued on another (I11).
	name := make([]byte, 16)
	if _, err := rand.Read(name); err != nil {
		return err
	}
	incarnation := hex.EncodeToString(name)
	listener, address, err := settings.Listen()
	if err != nil {
		return err
	}
	serving, hurry := process.StopOnSignals()
	served := server.New(host.NewRegistry(harness, incarnation, settings.Limits), settings.Token)
	// The socket takes connections already; who comes before Serve does waits for it.
	if err := ready.Announce(service, address, incarnation); err != nil {
		return err
	}
	defer slog.Info("stopped")
	return served.Serve(serving, hurry, listener, settings.Grace)
}
