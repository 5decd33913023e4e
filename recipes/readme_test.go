package recipes_test

import (
	"context"
	"testing"

	"github.com/caddyserver/certmagic"
	"github.com/hibiken/asynq"
	"github.com/pressly/goose/v3"
	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/pagetest"
	"github.com/relock-go/relock/recipes/asynqlock"
	"github.com/relock-go/relock/recipes/certlock"
	"github.com/relock-go/relock/recipes/cronlock"
	"github.com/relock-go/relock/recipes/gooselock"
)

// The code of the README. TestReadme_CodeCompiles holds the two together.

func certificates(config *certmagic.Config, storage certmagic.Storage, locks *relock.Client) {
	config.Storage = certlock.New(storage, locks) // storage: what you have now, shared by all nodes
}

func migrate(ctx context.Context, locks *relock.Client, provider *goose.Provider) ([]*goose.MigrationResult, error) {
	done, err := gooselock.Up(ctx, locks, "migrations", provider)
	return done, err
}

func tasks(rdb redis.UniversalClient, locks *relock.Client) (*asynq.ServeMux, *asynq.Server) {
	mux := asynq.NewServeMux()
	mux.Use(asynqlock.Exclusive(locks, func(task *asynq.Task) string { return task.Type() }))
	server := asynq.NewServerFromRedisClient(rdb, asynq.Config{
		IsFailure:      asynqlock.IsFailure,
		RetryDelayFunc: asynqlock.RetryDelay,
	})
	return mux, server
}

func nightly(ctx context.Context, locks *relock.Client, log cron.Logger, report func(context.Context) error) (cron.EntryID, error) {
	c := cron.New(cron.WithChain(cron.Recover(log), cronlock.OnOneNode(ctx, locks, "nightly", log)))
	id, err := c.AddJob("0 3 * * *", cronlock.Job(report))
	return id, err
}

var _ = []any{certificates, migrate, tasks, nightly} // for the compiler alone

func TestReadme_CodeCompiles(t *testing.T) {
	pagetest.RequireCode(t, "README.md", "go", "readme_test.go")
}
