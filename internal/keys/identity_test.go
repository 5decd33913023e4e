package keys

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIdentity_IsCurrentUntilRetired(t *testing.T) {
	s := NewIdentities()
	first := s.Current()
	require.Same(t, first, s.Current())
	s.Retire(first)
	second := s.Current()
	require.NotSame(t, first, second)
	require.NotEqual(t, *first, *second)
	require.Same(t, second, s.Current())
}

func TestIdentity_IsUnique(t *testing.T) {
	seen := make(map[Identity]bool)
	for range 100 {
		s := NewIdentities()
		for range 10 {
			id := s.Current()
			require.NotEmpty(t, *id)
			require.False(t, seen[*id])
			seen[*id] = true
			s.Retire(id)
		}
	}
}

// To retire an old identity again leaves the current one in use.
func TestIdentity_IsRetiredOnce(t *testing.T) {
	s := NewIdentities()
	first := s.Current()
	s.Retire(first)
	second := s.Current()
	s.Retire(first)
	require.Same(t, second, s.Current())
	s.Retire(nil)
	require.Same(t, second, s.Current())
	same := *second
	s.Retire(&same)
	require.Same(t, second, s.Current(), "it is another one, though it reads the same")
}

func TestIdentity_ManyThatDoubtItReplaceItOnce(t *testing.T) {
	s := NewIdentities()
	for range 500 {
		doubted := s.Current()
		next := make([]*Identity, 4)
		begin := make(chan struct{})
		var all sync.WaitGroup
		for i := range next {
			all.Go(func() {
				<-begin
				s.Retire(doubted)
				next[i] = s.Current()
			})
		}
		close(begin)
		all.Wait()
		for _, id := range next {
			require.NotSame(t, doubted, id, "it is replaced before the call that doubts it returns")
			require.Same(t, next[0], id)
		}
	}
}

func TestIdentity_FieldRetiresTheOneItBeginsWith(t *testing.T) {
	for name, c := range map[string]struct {
		field   func(id string) string
		retired bool
	}{
		"of a goroutine":              {func(id string) string { return id + ":7" }, true},
		"of a writer":                 {func(id string) string { return id + ":me:write" }, true},
		"of another identity":         {func(string) string { return "other:7" }, false},
		"that is the identity alone":  {func(id string) string { return id }, false},
		"of one that goes on from it": {func(id string) string { return id + "0:7" }, false},
		"with the identity inside it": {func(id string) string { return "other:" + id + ":7" }, false},
		"that is empty":               {func(string) string { return "" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewIdentities()
			id := s.Current()
			field := c.field(string(*id))
			require.Equal(t, c.retired, id.Begins(field))
			s.RetireField(field)
			require.Equal(t, c.retired, s.Current() != id)
		})
	}
}

func TestIdentity_NameIsIdentityAndOwner(t *testing.T) {
	target := new(Set)
	require.NoError(t, target.Init("", []string{"key"}))
	id := NewIdentities().Current()
	n := id.Of(target, Owner{Fixed: "me"})
	require.Equal(t, Name{Identity: id, Field: string(*id) + ":me"}, n)
	require.True(t, id.Begins(n.Field))
	require.NotEqual(t, n.Field, id.Of(target, Owner{Goroutine: 1}).Field)
	require.False(t, NewIdentities().Current().Begins(n.Field))
}
