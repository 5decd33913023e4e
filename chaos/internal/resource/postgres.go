package resource

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// postgresStore keeps a row for each lock.
type postgresStore struct{ pool *pgxpool.Pool }

const (
	createTable = `CREATE TABLE IF NOT EXISTS protected (lock text PRIMARY KEY, token bigint NOT NULL, value text NOT NULL)`

	writeIfNewer = `INSERT INTO protected VALUES ($1, $2, $3)
ON CONFLICT (lock) DO UPDATE SET token = excluded.token, value = excluded.value
WHERE protected.token <= excluded.token`
)

func openPostgres(ctx context.Context, url string) (Resource, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	return &postgresStore{pool: pool}, nil
}

func (s *postgresStore) Write(ctx context.Context, lock string, token int64, value string) (bool, error) {
	done, err := s.pool.Exec(ctx, writeIfNewer, lock, token, value)
	return err == nil && done.RowsAffected() == 1, err
}

func (s *postgresStore) Close() error {
	s.pool.Close()
	return nil
}
