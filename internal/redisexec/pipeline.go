package redisexec

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// pipeline sends the commands of all goroutines to one Redis process, on one connection, without
// waiting for answers in between: go-redis' auto-pipelining.
//
// That API is marked experimental: it may change with any minor version of go-redis. So all use of
// it is in this file, and an Executor can do without it: see Executor.Unpipelined.
type pipeline struct {
	auto  *redis.AutoPipeliner
	crowd crowd
}

// openPipeline returns a pipeline with the pools and the time-outs of rdb, or nil if rdb has no pipeline.
func openPipeline(rdb *redis.Client) *pipeline {
	auto, err := rdb.AsyncAutoPipelineWithOptions(pipelining())
	if err != nil {
		return nil
	}
	return &pipeline{auto: auto}
}

// window is the most commands that may be unanswered.
const window = 8192

// pipelining is how commands are sent: at once while few are under way, which is what a
// hand-over needs. With 64 and more unanswered ones the writer waits a moment for others to
// come along.
func pipelining() *redis.AutoPipelineOptions {
	return &redis.AutoPipelineOptions{
		FullDuplex:       true,
		FullDuplexWindow: window, // go-redis takes the 64 from it
		// Before it returns its connection to the pool, which it also does when it is idle, it writes nothing until all
		// commands are answered. If answers are slow, this must not happen every 5 s, which is the default.
		FullDuplexMaxHold: 5 * time.Minute,
		MaxFlushDelay:     100 * time.Microsecond,
	}
}

// submit sends cmd after all commands that were submitted before. callers is the number of callers that wait for answers, or are
// about to.
func (p *pipeline) submit(ctx context.Context, cmd *call, callers int64) queued {
	if callers < fewest || callers > most {
		return p.submitAlone(ctx, cmd)
	}
	return p.crowd.submit(ctx, p, cmd)
}

func (p *pipeline) submitAlone(ctx context.Context, cmd *call) queued {
	return queued{p.auto.Submit(ctx, cmd)}
}

// queued is a command that was submitted.
type queued struct{ future redis.AutoFuture }

// answer waits for the answer, or for the end of ctx: then the answer is pending, and the command is still sent.
func (q queued) answer(ctx context.Context) answer {
	err := q.future.WaitContext(ctx)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return answer{err: err, pending: q.answer}
	}
	return answerTo(q.future.Cmd().(*call), err)
}

// close ends a pipeline, and interrupts commands in flight.
func (p *pipeline) close() { _ = p.auto.Close() }

// notTaken reports whether err means that a pipeline did not accept a command, so that it was not sent.
func notTaken(err error) bool {
	return errors.Is(err, redis.ErrAutoPipelineTimeout) || errors.Is(err, redis.ErrAutoPipelineQueueFull)
}
