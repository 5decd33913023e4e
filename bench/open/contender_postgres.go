package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/relock-go/relock/bench/contend"
)

// postgresConnections bounds the pool: each lock that is held or waited for needs a connection of its own.
const postgresConnections = 64

type postgresClient struct{ pool *pgxpool.Pool }

func openPostgres(s contend.Setup) (contend.Client, error) {
	pool, err := pgxpool.New(context.Background(),
		fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable&pool_max_conns=%d", s.Addr, postgresConnections))
	return postgresClient{pool}, err
}

func (c postgresClient) Mutex(name string) contend.Mutex {
	return &postgresMutex{pool: c.pool, name: name}
}

func (c postgresClient) Close() error {
	c.pool.Close()
	return nil
}

type postgresMutex struct {
	pool *pgxpool.Pool
	name string
	conn *pgxpool.Conn // whose session holds the lock
}

func (m *postgresMutex) Lock(ctx context.Context) error {
	conn, err := m.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "select pg_advisory_lock(hashtextextended($1, 0))", m.name); err != nil {
		_ = conn.Hijack().Close(context.Background()) // the lock may have been granted: it ends with the session
		return err
	}
	m.conn = conn
	return nil
}

func (m *postgresMutex) Unlock() error {
	var held bool
	err := m.conn.QueryRow(context.Background(), "select pg_advisory_unlock(hashtextextended($1, 0))", m.name).Scan(&held)
	m.conn.Release()
	if err == nil && !held {
		err = fmt.Errorf("PostgreSQL: the session does not hold %q", m.name)
	}
	return err
}
