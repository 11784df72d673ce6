// Package facade calls the control plane's facades for a run, with the run's own capability tokens.
package facade

import (
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// maxChannels bounds the connections of a process; facades have few addresses.
const maxChannels = 16

// Channels are connections to facades, one per address, shared by all runs of a process.
type Channels struct {
	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
	// order of addresses, the longest unused first.
	order []string
}

// NewChannels has no connection yet.
func NewChannels() *Channels { return &Channels{conns: map[string]*grpc.ClientConn{}} }

// to is the connection to `unix:/path` or `host:port`.
func (c *Channels) to(address string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.conns[address]
	if conn == nil {
		made, err := grpc.NewClient(address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithAuthority("localhost"),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, MaxDelay: time.Second},
				MinConnectTimeout: 5 * time.Second,
			}),
		)
		if err != nil {
			return nil, err
		}
		conn, c.conns[address] = made, made
	}
	c.touch(address)
	if len(c.order) > maxChannels {
		oldest := c.order[0]
		c.order = c.order[1:]
		// Calls still open on it fail as those of a facade that went away, and are made again.
		_ = c.conns[oldest].Close()
		delete(c.conns, oldest)
	}
	return conn, nil
}

func (c *Channels) touch(address string) {
	for i, known := range c.order {
		if known == address {
			c.order = append(c.order[:i], c.order[i+1:]...)
			break
		}
	}
	c.order = append(c.order, address)
}

// Close ends all connections and the calls on them.
func (c *Channels) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close() // it only fails when it is closed already
	}
	c.conns, c.order = map[string]*grpc.ClientConn{}, nil
}
