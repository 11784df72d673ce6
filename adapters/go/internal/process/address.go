package process

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// checkAccess refuses to let callers in whom nothing vouches for: a unix socket has its mode, TCP needs a token. A port
// on loopback is open to every user of the machine, so it needs one too, unless that is wanted for development.
func (s *Settings) checkAccess() error {
	if path, unix := strings.CutPrefix(s.Address, "unix:"); unix {
		if path == "" {
			return misconfigured("-address: %q is neither unix:/path nor host:port.", s.Address)
		}
		return nil
	}
	name, port, err := net.SplitHostPort(s.Address)
	number, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || name == "" || number > 65_535 {
		return misconfigured("-address: %q is neither unix:/path nor host:port.", s.Address)
	}
	if s.Token != "" {
		return nil
	}
	ip := net.ParseIP(name)
	if name != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return misconfigured(
			"%s is missing: every TCP address needs it; %s can be reached from other machines.", tokenVariable, s.Address,
		)
	}
	if !s.anonymous {
		return misconfigured(
			"%s is missing: every TCP address needs it, or any user of this machine could start runs. Set it, listen on "+
				"a unix socket, or, for development, set %s=1.", tokenVariable, anonymousVariable,
		)
	}
	slog.Warn("anonymous_callers_allowed", "address", s.Address, "meaning", "any user of this machine can start runs")
	return nil
}

// Listen takes the address and returns it with the real port.
func (s *Settings) Listen() (net.Listener, string, error) {
	path, unix := strings.CutPrefix(s.Address, "unix:")
	if !unix {
		listener, err := net.Listen("tcp", s.Address)
		if err != nil {
			return nil, "", misconfigured("-address: cannot listen on %s: %v.", s.Address, errors.Unwrap(err))
		}
		return listener, listener.Addr().String(), nil
	}
	if err := clear(path); err != nil {
		return nil, "", err
	}
	// Never open to others between bind and the first call.
	before := syscall.Umask(0o177)
	defer syscall.Umask(before)
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, "", misconfigured("-address: cannot listen on %s: %v.", s.Address, errors.Unwrap(err))
	}
	return listener, s.Address, nil
}

// clear removes the socket that a dead process left.
func clear(path string) error {
	found, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return misconfigured("-address: %v.", err)
	}
	if found.Mode().Type() != os.ModeSocket {
		return misconfigured("-address: %s exists and is not a socket: remove it or choose another path.", path)
	}
	probe, err := net.Dial("unix", path)
	if err == nil {
		_ = probe.Close() // nothing was sent on it
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return misconfigured("-address: another process listens on %s: stop it or choose another path.", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return misconfigured("-address: %v.", err)
	}
	return nil
}
