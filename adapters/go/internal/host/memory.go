package host

import "sync"

// memory bounds the bytes of drafts that are not yet durable, over all runs of a host (I35). Past the bound ended runs
// that were read to their end give theirs up, the oldest first; if that is not enough, no provider goes on until there
// is room. Its lock is never held while a run's is taken.
type memory struct {
	most int

	mu   sync.Mutex
	used int
	// Ended runs, the oldest first.
	dispensable []*run
	// freed is closed, and replaced, when there is room again.
	freed chan struct{}
}

func newMemory(most int) *memory { return &memory{most: most, freed: make(chan struct{})} }

func (m *memory) isFull() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used >= m.most
}

// room has a value when there may be room again; asking for it lets one dispensable run give up its drafts.
func (m *memory) room() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.used >= m.most && len(m.dispensable) > 0 {
		oldest := m.dispensable[0]
		m.dispensable = m.dispensable[1:]
		go oldest.giveUp()
	}
	return m.freed
}

func (m *memory) take(size int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used += size
}

func (m *memory) free(size int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.used -= size; size > 0 {
		close(m.freed)
		m.freed = make(chan struct{})
	}
}

func (m *memory) offer(r *run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, known := range m.dispensable {
		if known == r {
			return
		}
	}
	m.dispensable = append(m.dispensable, r)
	// Whoever waits looks again, and takes it up on the offer.
	close(m.freed)
	m.freed = make(chan struct{})
}

func (m *memory) withdraw(r *run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, known := range m.dispensable {
		if known == r {
			m.dispensable = append(m.dispensable[:i], m.dispensable[i+1:]...)
			return
		}
	}
}
