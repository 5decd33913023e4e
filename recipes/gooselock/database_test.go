package gooselock_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"slices"
	"sync"
	"time"

	goose "github.com/pressly/goose/v3/database"
)

// database is one as far as goose needs it for migrations that are Go functions: the table of versions,
// in memory. Connections to it can do nothing but begin and commit.
type database struct {
	mu      sync.Mutex
	applied map[int64]time.Time
}

func newDatabase() *database { return &database{} }

// versions returns the applied versions, the last one first.
func (d *database) versions() []int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []int64
	for v := range d.applied {
		all = append(all, v)
	}
	slices.Sort(all)
	slices.Reverse(all)
	return all
}

func (d *database) Tablename() string { return "versions" }

func (d *database) CreateVersionTable(context.Context, goose.DBTxConn) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.applied != nil {
		return errors.New("there is a table already")
	}
	d.applied = make(map[int64]time.Time)
	return nil
}

func (d *database) Insert(_ context.Context, _ goose.DBTxConn, req goose.InsertRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, twice := d.applied[req.Version]; twice {
		return errors.New("applied twice")
	}
	d.applied[req.Version] = time.Now()
	return nil
}

func (d *database) Delete(_ context.Context, _ goose.DBTxConn, version int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.applied, version)
	return nil
}

func (d *database) GetMigration(_ context.Context, _ goose.DBTxConn, version int64) (*goose.GetMigrationResult, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, applied := d.applied[version]
	if !applied {
		return nil, goose.ErrVersionNotFound
	}
	return &goose.GetMigrationResult{Timestamp: at, IsApplied: true}, nil
}

func (d *database) GetLatestVersion(context.Context, goose.DBTxConn) (int64, error) {
	if all := d.versions(); len(all) > 0 {
		return all[0], nil
	}
	return 0, goose.ErrVersionNotFound
}

func (d *database) ListMigrations(context.Context, goose.DBTxConn) ([]*goose.ListMigrationsResult, error) {
	var all []*goose.ListMigrationsResult
	for _, v := range d.versions() {
		all = append(all, &goose.ListMigrationsResult{Version: v, IsApplied: true})
	}
	return all, nil
}

// connector connects to nothing.
type connector struct{}

func (connector) Connect(context.Context) (driver.Conn, error) { return connection{}, nil }
func (connector) Driver() driver.Driver                        { return nil }

type connection struct{}

func (connection) Prepare(string) (driver.Stmt, error) { return nil, errors.New("no statements here") }
func (connection) Close() error                        { return nil }
func (connection) Begin() (driver.Tx, error)           { return connection{}, nil }
func (connection) Commit() error                       { return nil }
func (connection) Rollback() error                     { return nil }
