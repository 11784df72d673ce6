package process

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	readyVariable  = "HARNESS_READY_FD"
	parentVariable = "HARNESS_DIE_WITH_PARENT"
)

// Readiness is the descriptor named by HARNESS_READY_FD: one JSON line when the process serves, then closed.
type Readiness struct{ file *os.File }

// TakeReadiness takes the descriptor out of the environment.
func TakeReadiness() (*Readiness, error) {
	text := os.Getenv(readyVariable)
	if text == "" {
		return &Readiness{}, nil
	}
	number, err := strconv.Atoi(text)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(number), unix.F_SETFD, unix.FD_CLOEXEC)
	}
	if err != nil {
		return nil, misconfigured("%s: %q is not an open file descriptor.", readyVariable, text)
	}
	return &Readiness{file: os.NewFile(uintptr(number), "readiness")}, os.Unsetenv(readyVariable)
}

// Announce says that the process serves. Once.
func (r *Readiness) Announce(service, address, incarnation string) error {
	slog.Info("ready", "address", address, "incarnation", incarnation)
	if r.file == nil {
		return nil
	}
	file := r.file
	r.file = nil
	err := json.NewEncoder(file).Encode(map[string]any{
		"pid": os.Getpid(), "service": service, "address": address, "incarnation": incarnation, "worker": false,
	})
	if errors.Is(err, syscall.EPIPE) {
		slog.Warn("nobody_waits_for_readiness")
		err = nil
	}
	return errors.Join(err, file.Close())
}

// DieWithParent lets the kernel kill this process when its parent dies, if HARNESS_DIE_WITH_PARENT is 1 or the parent's
// pid. Call it on the main goroutine: the wish belongs to the thread, which must stay.
func DieWithParent() error {
	text := os.Getenv(parentVariable)
	if text == "" || text == "0" {
		return nil
	}
	parent, err := strconv.Atoi(text)
	if err != nil {
		return misconfigured("%s: %q is neither 1 nor a process id.", parentVariable, text)
	}
	if parent == 1 {
		parent = os.Getppid()
	}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	if os.Getppid() != parent {
		// It died before the wish took effect: no signal will come for that.
		return errors.New("the parent process is gone")
	}
	return nil
}

// StopOnSignals ends the first context with the first SIGTERM or SIGINT, and the second with the next one.
func StopOnSignals() (serving, hurry context.Context) {
	serving, stop := context.WithCancel(context.Background())
	hurry, now := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		slog.Info("stop_requested", "signal", (<-signals).String())
		stop()
		<-signals
		now()
	}()
	return serving, hurry
}
