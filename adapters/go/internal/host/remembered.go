package host

import "container/list"

// remembered is a map that forgets what was put longest ago once it is full.
type remembered[K comparable, V any] struct {
	most    int
	entries map[K]*list.Element
	order   *list.List
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

func newRemembered[K comparable, V any](most int) *remembered[K, V] {
	return &remembered[K, V]{most: most, entries: map[K]*list.Element{}, order: list.New()}
}

func (r *remembered[K, V]) put(key K, value V) {
	if old, ok := r.entries[key]; ok {
		r.order.Remove(old)
	}
	r.entries[key] = r.order.PushBack(entry[K, V]{key, value})
	if r.order.Len() > r.most {
		oldest := r.order.Remove(r.order.Front()).(entry[K, V])
		delete(r.entries, oldest.key)
	}
}

func (r *remembered[K, V]) get(key K) (value V, ok bool) {
	element, ok := r.entries[key]
	if !ok {
		return value, false
	}
	return element.Value.(entry[K, V]).value, true
}
