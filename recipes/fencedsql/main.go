// Fencedsql shows why a lock alone does not protect a row, and what a fencing token adds. A process that was paused writes
// after it has lost its lock, and Postgres refuses the write. It needs a Postgres, and makes a temporary table there.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/alicebob/miniredis/v2"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

func main() {
	addr := flag.String("redis", "", "`host:port` of a Redis; without it an embedded one")
	postgres := flag.String("postgres", "postgres://localhost", "the `URL` of a Postgres")
	flag.Parse()
	if *addr == "" {
		embedded := miniredis.NewMiniRedis()
		if err := embedded.Start(); err != nil {
			log.Fatal(err)
		}
		*addr = embedded.Addr()
	}
	if err := run(context.Background(), os.Stdout, *addr, *postgres); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, addr, postgres string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	locks, err := relock.New(rdb)
	if err != nil {
		return err
	}
	defer locks.Close()
	db, err := sql.Open("pgx", postgres)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // a temporary table belongs to a connection
	_, err = db.ExecContext(ctx, `CREATE TEMPORARY TABLE docs (id INT PRIMARY KEY, body TEXT NOT NULL, token BIGINT NOT NULL DEFAULT 0)`)
	if err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, `INSERT INTO docs VALUES (7, 'empty')`); err != nil {
		return err
	}

	paused := locks.Mutex("example-doc:7", relock.WithFencing(), relock.WithOwner("paused"))
	if err := paused.Lock(ctx); err != nil {
		return err
	}
	token := paused.FencingToken()
	fmt.Fprintln(out, "A process gets the lock, and is paused")
	if _, err := locks.Mutex("example-doc:7").ForceUnlock(ctx); err != nil { // stands for the end of its lease
		return err
	}
	next := locks.Mutex("example-doc:7", relock.WithFencing(), relock.WithOwner("next"))
	err = next.Do(ctx, func(ctx context.Context) error {
		fmt.Fprintln(out, "Its lock is lost. The next one writes, with a higher token:", next.FencingToken() > token)
		return save(ctx, db, 7, "that of the next one", next.FencingToken())
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "The first one goes on, and writes:", save(ctx, db, 7, "late", token))
	var body string
	if err := db.QueryRowContext(ctx, `SELECT body FROM docs WHERE id = 7`).Scan(&body); err != nil {
		return err
	}
	fmt.Fprintln(out, "The document is", body)
	if err := paused.Unlock(); !errors.Is(err, relock.ErrLost) {
		return fmt.Errorf("the loss is not reported: %w", err)
	}
	return nil
}

// save writes unless a holder with a higher token has written.
func save(ctx context.Context, db *sql.DB, id int, body string, token int64) error {
	result, err := db.ExecContext(ctx, `UPDATE docs SET body = $1, token = $2 WHERE id = $3 AND token <= $2`, body, token, id)
	if err != nil {
		return err
	}
	n, err := result.RowsAffected()
	if err == nil && n == 0 {
		err = errors.New("refused: no such document, or a later holder has written it")
	}
	return err
}
